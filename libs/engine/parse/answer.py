"""One answer taken apart: reasoning first, then calls in what is left."""

from __future__ import annotations

from libs.engine.parse.api import Parsed
from libs.engine.parse.calls import Calls
from libs.engine.parse.thoughts import Thoughts
from proto.output import CallDelta

__all__ = ["Answer"]


class Answer:
    """The parser of one answer.

    Args:
        thoughts: tells reasoning apart, if it is to be.
        calls: tells calls apart, if they are to be.
    """

    def __init__(self, thoughts: Thoughts | None, calls: Calls | None) -> None:
        self._thoughts = thoughts
        self._calls = calls
        self._blank = ""
        """White space that may be nothing but the margin of a call."""

    @property
    def thinking(self) -> bool:
        """Whether the answer is in its reasoning."""
        return self._thoughts is not None and self._thoughts.inside

    def feed(self, text: str) -> Parsed:
        """Return what the next piece of raw text brings."""
        reasoning = ""
        if self._thoughts is not None:
            reasoning, text = self._thoughts.feed(text)
        if self._calls is None:
            return Parsed(text, reasoning)
        text, calls = self._within_margins(self._calls.feed(text))
        return Parsed(text, reasoning, calls)

    def end(self) -> Parsed:
        """Return what was held back, at the end of the answer."""
        reasoning = text = ""
        if self._thoughts is not None:
            reasoning, text = self._thoughts.end()
        if self._calls is None:
            return Parsed(text, reasoning)
        text, calls = self._within_margins([*self._calls.feed(text), *self._calls.end()])
        if not self._calls.any:
            text, self._blank = text + self._blank, ""
        return Parsed(text, reasoning, calls)

    def _within_margins(self, pieces: list[str | CallDelta]) -> tuple[str, tuple[CallDelta, ...]]:
        """Return text without the white space before, between and behind calls, and the calls.

        White space is held back until it is known what follows.
        """
        said: list[str] = []
        calls: list[CallDelta] = []
        for piece in pieces:
            if isinstance(piece, CallDelta):
                self._blank = ""
                calls.append(piece)
            elif piece:
                text = self._blank + piece
                solid = text.rstrip()
                self._blank = text[len(solid) :]
                said.append(solid)
        return "".join(said), tuple(calls)
