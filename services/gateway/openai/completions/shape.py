"""How a completion is worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.text import Tokenizer
from proto.ledger import Usage
from proto.openai.completions import Completion, CompletionChoice
from proto.openai.usage import usage_info
from services.gateway.openai.answers import Said
from services.gateway.openai.completions.frames import CompletionFrames
from services.gateway.openai.completions.logprobs import Words
from services.gateway.openai.frames import Head

__all__ = ["CompletionShape"]


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Implements `services.gateway.openai.answers.Shape`."""

    echoes: tuple[str, ...]
    """What stands before the answers to each prompt."""
    choices_a_prompt: int
    include_usage: bool
    tokenizer: Tokenizer | None = None
    """Words the log-probabilities, where they are asked for."""
    skips_special: bool = True

    def frames(self, head: Head) -> CompletionFrames:
        """Return the events of a streamed answer."""
        return CompletionFrames(
            head, echoes=self._echoes(), words=self._words(), include_usage=self.include_usage
        )

    def whole(self, head: Head, said: Sequence[Said], usage: Usage) -> Completion:
        """Return an answer in one piece."""
        echoes, words = self._echoes(), self._words()
        return Completion(
            id=f"cmpl-{head.rid}",
            created=head.created,
            model=head.model,
            choices=tuple(
                CompletionChoice(
                    index=index,
                    text=echoes[index] + choice.text,
                    logprobs=words[index].take(choice.logprobs) if words else None,
                    finish_reason=choice.ended,
                )
                for index, choice in enumerate(said)
            ),
            usage=usage_info(usage),
        )

    def _echoes(self) -> list[str]:
        """Return what stands before each choice."""
        return [echo for echo in self.echoes for _ in range(self.choices_a_prompt)]

    def _words(self) -> list[Words] | None:
        if self.tokenizer is None:
            return None
        choices = len(self.echoes) * self.choices_a_prompt
        return [Words(self.tokenizer, skips_special=self.skips_special) for _ in range(choices)]
