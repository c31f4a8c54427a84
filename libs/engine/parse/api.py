"""The port of the parsers: raw text in, text, reasoning and pieces of tool calls out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from proto.host import Job
from proto.output import CallDelta
from proto.workers import Feature

__all__ = ["AnswerParser", "Parsed", "Parsers", "UnreadableTools"]


class UnreadableTools(ValueError):
    """The tools of a request are not what the parsers can read."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What came of some text; empty where all of it is held back."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class AnswerParser(Protocol):
    """Takes one answer apart. Nothing that the model says can make it fail.

    What it gives in sum does not depend on where the text was cut into pieces, but for how far
    the arguments of a call come that breaks off.
    """

    @property
    def thinking(self) -> bool:
        """Whether the answer is in its reasoning."""
        ...

    def feed(self, text: str) -> Parsed:
        """Return what the next piece of raw text brings."""
        ...

    def end(self) -> Parsed:
        """Return what was held back, at the end of the answer."""
        ...


class Parsers(Protocol):
    """Makes parsers for the answers of one model."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """What the model's answers can be parsed for."""
        ...

    def wants_marks(self, job: Job) -> bool:
        """Return whether special tokens must stay in the text that is parsed."""
        ...

    def parser(self, job: Job) -> AnswerParser | None:
        """Return a parser for the job's answer, or None if it is plain text.

        Raises:
            UnreadableTools: the job's tools cannot be read.
        """
        ...
