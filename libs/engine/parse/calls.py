"""Tool calls out of an answer's text, by one of SGLang's detectors.

The detectors were made for whole tokens and lose text here and there: what they hold when a call
comes to nothing, or all of it where the model names a function that does not exist. So they are
fed in pieces that depend on the text alone, and what they drop is given as text.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from proto.output import CallDelta

__all__ = ["Calls"]

_LOG = logging.getLogger(__name__)
_FINE = 48
"""While a detector holds less than this it gets the text character by character."""
_EDGES = frozenset("\"'}])>|\n")
"""Beyond that a piece ends with one of these: what a detector acts on."""
_LAG_FROM = 2048
_LAG_SHIFT = 5
"""A detector reads all that it holds with each piece: pieces grow with it, by this factor."""
_MOST_HELD = 1 << 18
_MOST_DRAINS = 256
_NO_MARK = "\0"
"""For detectors that know no mark that begins a call."""


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class Calls:
    """The calls of one answer.

    Args:
        detector: SGLang's, fresh.
        tools: what may be called, as SGLang's objects.
        forced: the answer is an array of calls and nothing else.
        new_id: makes the id of a call.
    """

    def __init__(
        self,
        detector: Any,
        tools: Sequence[Any],
        *,
        forced: bool = False,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self._detector = detector
        self._tools = list(tools)
        self._forced = forced
        self._new_id = new_id
        self._names = {tool.function.name for tool in tools}
        self._mark = str(getattr(detector, "bot_token", "")) or _NO_MARK
        self._pending = ""
        self._broken = False
        self._owed: str = ""
        """Text that the detector was given and that has not come back in any form."""
        self._claimed: str = ""
        """Text that became the name of the call that is `_named`."""
        self._index: dict[int, int] = {}
        """Our number of the newest call that the detector gave each of its numbers."""
        self._count = 0
        self._named: CallDelta | None = None
        """A call of which nothing but the name has come: it may still come to nothing."""
        self._out: list[str | CallDelta] = []

    @property
    def any(self) -> bool:
        """Whether a call came."""
        return self._count > 0 and (self._count > 1 or self._named is None)

    def feed(self, text: str) -> list[str | CallDelta]:
        """Return plain text and pieces of calls, in order, that the next text brings."""
        for char in text:
            if self._broken:
                self._out.append(char)
                continue
            if self._is_padding(char):
                continue
            self._pending += char
            if self._due(char):
                self._step()
        if self._pending and self._open and len(self._pending) >= self._lag():
            self._step()
        return self._take()

    def end(self) -> list[str | CallDelta]:
        """Return what was held back."""
        if not self._broken:
            self._step()
            for _ in range(_MOST_DRAINS):
                if self._broken or not self._step():
                    break
        if not self._broken:
            self._finish()
        return self._take()

    @property
    def _open(self) -> bool:
        """Whether the name of a call has come and its end has not."""
        return self._count > 0 and bool(getattr(self._detector, "current_tool_name_sent", False))

    @property
    def _held(self) -> str:
        held = getattr(self._detector, "_buffer", "")
        return held if isinstance(held, str) else ""

    def _is_padding(self, char: str) -> bool:
        """Return whether a character stands between forced calls, where no detector expects it."""
        return (
            self._forced
            and char.isspace()
            and not self._open
            and not (self._held + self._pending).strip("[, ")
        )

    def _lag(self) -> int:
        held = len(self._held)
        return held >> _LAG_SHIFT if held > _LAG_FROM else 0

    def _due(self, char: str) -> bool:
        if len(self._held) < _FINE:
            return True
        return char in _EDGES and len(self._pending) >= self._lag()

    def _step(self) -> bool:
        """Give the detector what is pending; return whether anything came."""
        fed, self._pending = self._pending, ""
        self._owed += fed
        try:
            result = self._detector.parse_streaming_increment(fed, self._tools)
        except Exception as error:  # noqa: BLE001 - foreign code on whatever a model says
            self._give_up(error)
            return True
        came = self._use(result)
        if len(self._held) > _MOST_HELD:
            self._give_up(None)
        return came

    def _use(self, result: Any) -> bool:
        came = bool(result.normal_text or result.calls)
        if result.normal_text:
            self._say(result.normal_text)
        for item in result.calls:
            if item.name and item.name not in self._names:
                self._index.pop(item.tool_index, None)
                continue
            if item.name:
                self._begin(item)
            elif item.tool_index not in self._index:
                continue
            elif item.parameters:
                self._go_on(self._index[item.tool_index], item.parameters)
            self._owed = ""
        return came

    def _say(self, text: str) -> None:
        """Give text, and what the detector has dropped before it."""
        if self._named is not None and not self._open:
            self._settle(self._named, "")
        dropped, found, rest = self._owed.partition(text)
        if found:
            self._out.append(self._lost(dropped))
        self._out.append(text)
        self._owed = rest

    def _lost(self, dropped: str) -> str:
        """Return what of dropped text is no mark of a call that came."""
        if not self._count:
            return dropped
        _, found, rest = dropped.partition(self._mark)
        return found + rest

    def _begin(self, item: Any) -> None:
        if self._named is not None:
            self._go_on(self._named.index, "{}")
        # A mark before the last one has begun something that was no call.
        before, mark, _ = self._owed.rpartition(self._mark)
        if mark:
            self._out.append(self._lost(before))
            self._owed = self._owed[len(before) :]
        index, self._count = self._count, self._count + 1
        self._index[item.tool_index] = index
        self._named = CallDelta(index=index, id=self._new_id(), name=item.name)
        self._claimed = self._owed
        if item.parameters:
            self._go_on(index, item.parameters)

    def _go_on(self, index: int, arguments: str) -> None:
        self._confirm()
        self._out.append(CallDelta(index=index, arguments=arguments))

    def _confirm(self) -> None:
        if self._named is not None:
            self._out.append(self._named)
            self._named = None

    def _finish(self) -> None:
        held, was_open = self._held, self._open
        try:
            self._use(self._detector.finish(self._tools))
        except Exception as error:  # noqa: BLE001 - foreign code on whatever a model says
            self._give_up(error)
            return
        if self._named is not None:
            was_open = False
            self._settle(self._named, held)
        if not was_open:
            self._out.append(self._rest(held))

    def _settle(self, named: CallDelta, held: str) -> None:
        """Decide what a call is that has got no argument until the end."""
        if "arguments" in held or "parameters" in held:
            self._named, self._count = None, self._count - 1
            self._owed = self._claimed + self._owed
        else:
            self._go_on(named.index, "{}")

    def _rest(self, held: str) -> str:
        """Return what of the last text is no mark of a call that came."""
        lost = self._lost(self._owed)
        if lost or not self.any:
            return lost
        mark = str(getattr(self._detector, "eot_token", "")).strip()
        return "" if self._forced or not mark else held.partition(mark)[2]

    def _give_up(self, error: Exception | None) -> None:
        """Let what is not given yet, and all that follows, be plain text."""
        kind = "too much text" if error is None else type(error).__name__
        _LOG.warning("the tool parser failed: %s", kind)
        self._broken = True
        if self._named is not None:
            self._named, self._count = None, self._count - 1
            self._owed = self._claimed + self._owed
        self._out += [self._owed, self._pending]
        self._owed = self._pending = ""

    def _take(self) -> list[str | CallDelta]:
        out, self._out = self._out, []
        return out
