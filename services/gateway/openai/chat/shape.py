"""How a chat answer is worded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from libs.text import Tokenizer
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.chat import AnswerMessage, CalledFunction, ChatCompletion, Choice, ToolCall
from proto.openai.logprobs import ChoiceLogprobs
from proto.openai.usage import usage_info
from services.gateway.openai.answers import Said
from services.gateway.openai.chat.frames import ChatFrames, Wording, answer_id
from services.gateway.openai.chat.logprobs import token_infos
from services.gateway.openai.frames import Head

__all__ = ["ChatShape"]


class ChatShape(msgspec.Struct, frozen=True):
    """Implements `services.gateway.openai.answers.Shape`."""

    choices: int
    include_usage: bool
    tokenizer: Tokenizer | None = None
    """Words the log-probabilities, where they are asked for."""
    one_call: bool = False
    """Only the first tool call of each choice is given."""

    def frames(self, head: Head) -> ChatFrames:
        """Return the events of a streamed answer."""
        wording = Wording(
            choices=self.choices,
            include_usage=self.include_usage,
            tokenizer=self.tokenizer,
            one_call=self.one_call,
        )
        return ChatFrames(head, wording)

    def whole(self, head: Head, said: Sequence[Said], usage: Usage) -> ChatCompletion:
        """Return an answer in one piece."""
        return ChatCompletion(
            id=answer_id(head),
            created=head.created,
            model=head.model,
            choices=tuple(self._choice(index, choice) for index, choice in enumerate(said)),
            usage=usage_info(usage),
        )

    def _choice(self, index: int, said: Said) -> Choice:
        calls = [said.calls[key] for key in sorted(said.calls) if not (self.one_call and key)]
        message = AnswerMessage(
            content=said.text or (None if calls else ""),
            tool_calls=tuple(
                ToolCall(id=c.id, function=CalledFunction(name=c.name, arguments=c.arguments))
                for c in calls
            )
            if calls
            else UNSET,
            reasoning_content=said.reasoning or UNSET,
        )
        logprobs = None
        if self.tokenizer is not None:
            logprobs = ChoiceLogprobs(content=token_infos(self.tokenizer, said.logprobs))
        finish: FinishReason = said.ended
        return Choice(index=index, message=message, logprobs=logprobs, finish_reason=finish)
