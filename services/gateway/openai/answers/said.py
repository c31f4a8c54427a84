"""What one choice has said, gathered from its deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.output import CallDelta, Details, TokenLogprob
from services.gateway.api import Part

__all__ = ["UNFINISHED", "Said", "SaidCall", "total_usage"]

UNFINISHED = "the answer ended without a finish"


@dataclass(slots=True)
class SaidCall:
    """A tool call."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Said:
    """One choice so far."""

    pieces: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: dict[int, SaidCall] = field(default_factory=dict[int, SaidCall])
    """By their index in the answer."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    finish: FinishReason | None = None

    @property
    def text(self) -> str:
        """All plain text."""
        return "".join(self.pieces)

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        return "".join(self.thoughts)

    @property
    def ended(self) -> FinishReason:
        """Why it ended.

        Raises:
            PdbusError: internal, as it has not.
        """
        if self.finish is None:
            raise PdbusError(ErrorCode.INTERNAL, UNFINISHED)
        return self.finish

    def take(self, delta: Part) -> None:
        """Add some tokens."""
        if delta.text:
            self.pieces.append(delta.text)
        if delta.details is not None:
            self._take(delta.details)
        if delta.finish is not None:
            self.finish = delta.finish

    def _take(self, details: Details) -> None:
        if details.reasoning:
            self.thoughts.append(details.reasoning)
        self.logprobs.extend(details.logprobs)
        for piece in details.calls:
            self._call(piece)

    def _call(self, piece: CallDelta) -> None:
        call = self.calls.get(piece.index)
        if call is None:
            self.calls[piece.index] = SaidCall(piece.id, piece.name, piece.arguments)
        else:
            call.arguments += piece.arguments


def total_usage(usages: Sequence[Usage], choices_a_prompt: int) -> Usage:
    """Return the usage of all choices together; each prompt counts once."""
    if len(usages) == 1:
        return usages[0]
    prompts = usages[::choices_a_prompt]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in prompts),
        migrations=sum(usage.migrations for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )
