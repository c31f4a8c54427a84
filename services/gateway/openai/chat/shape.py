"""How a chat answer is worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proto.ledger import Usage
from proto.openai.chat import AnswerMessage, ChatCompletion, Choice
from proto.openai.usage import usage_info
from services.gateway.openai.answers import Said
from services.gateway.openai.chat.frames import ChatFrames, answer_id
from services.gateway.openai.frames import Head

__all__ = ["ChatShape"]


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Implements `services.gateway.openai.answers.Shape`."""

    choices: int
    include_usage: bool

    def frames(self, head: Head) -> ChatFrames:
        """Return the events of a streamed answer."""
        return ChatFrames(head, choices=self.choices, include_usage=self.include_usage)

    def whole(self, head: Head, said: Sequence[Said], usage: Usage) -> ChatCompletion:
        """Return an answer in one piece."""
        return ChatCompletion(
            id=answer_id(head),
            created=head.created,
            model=head.model,
            choices=tuple(_choice(index, choice) for index, choice in enumerate(said)),
            usage=usage_info(usage),
        )


def _choice(index: int, said: Said) -> Choice:
    message = AnswerMessage(content=said.text)
    return Choice(index=index, message=message, finish_reason=said.ended)
