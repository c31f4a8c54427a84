"""Reasoning out of an answer's text, by one of SGLang's detectors."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["Thoughts"]

_LOG = logging.getLogger(__name__)


class Thoughts:
    """The reasoning of one answer.

    The detector gets the text character by character, so that it finds its marks wherever the
    tokens were cut.
    """

    def __init__(self, detector: Any) -> None:
        self._detector = detector
        self._broken = False
        self._inside: bool | None = None
        """Where a detector does not say: what came last was reasoning."""

    @property
    def inside(self) -> bool:
        """Whether the answer is in its reasoning."""
        if self._broken:
            return False
        return bool(getattr(self._detector, "_in_reasoning", self._inside))

    @property
    def holds(self) -> bool:
        """Whether text is held back that may turn out to be a mark."""
        return bool(getattr(self._detector, "_buffer", ""))

    def feed(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the other text that the next text brings."""
        thoughts: list[str] = []
        rest: list[str] = []
        for char in text:
            if self._broken:
                rest.append(char)
                continue
            before = self._held
            try:
                result = self._detector.parse_streaming_increment(char)
            except Exception as error:  # noqa: BLE001 - foreign code on whatever a model says
                self._give_up(error)
                rest.append(before + char)
                continue
            self._note(result)
            thoughts.append(result.reasoning_text)
            rest.append(result.normal_text)
        return "".join(thoughts), "".join(rest)

    def end(self) -> tuple[str, str]:
        """Return what was held back."""
        if self._broken:
            return "", ""
        held = self._held
        try:
            result = self._detector.finish()
        except Exception as error:  # noqa: BLE001 - foreign code on whatever a model says
            self._give_up(error)
            return "", held
        return result.reasoning_text, result.normal_text

    @property
    def _held(self) -> str:
        held = getattr(self._detector, "_buffer", "")
        return held if isinstance(held, str) else ""

    def _note(self, result: Any) -> None:
        if result.normal_text:
            self._inside = False
        elif result.reasoning_text:
            self._inside = True

    def _give_up(self, error: Exception) -> None:
        _LOG.warning("the reasoning parser failed: %s", type(error).__name__)
        self._broken = True
