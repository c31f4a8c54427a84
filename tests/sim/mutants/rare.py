"""Bugs that show in one world of many hundred; most were found so.

They are hunted in that world first, or their moment is brought about.
"""

from __future__ import annotations

from typing import Any

from libs.worker.tombstones import Tombstones
from proto.errors import ErrorCode, PdbusError
from services.gateway.attempts import assembler
from services.gateway.attempts.assembler import Assembler
from services.gateway.calls.live import LiveCall
from services.router import claims
from tests.sim.mutants.plant import Mutant, aimed, mutant

__all__ = ["RARE"]


_cancel = LiveCall.cancel


def _at_any_time(self: Any, reason: str) -> bool:
    self._finishing = False
    return _cancel(self, reason)


_begin = Assembler.begin


def _forget_sources(self: Any, attempt: int) -> None:
    _begin(self, attempt)
    self.inherited = 0


_accept = Assembler.accept


def _no_patience(self: Any, chunk: Any) -> list[Any]:
    if len(self._held) >= assembler._MOST_HELD:
        raise PdbusError(ErrorCode.STREAM_GAP, "too many chunks wait for one")
    return _accept(self, chunk)


_check = claims._check


def _never_late(record: Any, ask: Any) -> None:
    if record.attempt < ask.attempt and not record.ended:
        raise PdbusError(ErrorCode.STALE_ATTEMPT, "it is another")
    _check(record, ask)


_complete = LiveCall._complete


async def _cancelled_at_the_end(self: Any, *attempt: Any) -> None:
    """Let an operator cancel a request just when its end is being written."""
    done, clock = self._endings.done, self._ports.clock

    async def meddle() -> None:
        await clock.sleep(0.002)
        self.cancel("an operator wants it so")

    async def met(outcome: Any) -> None:
        self._ports.tasks.spawn(meddle(), name="meddle")
        await done(outcome)

    self._endings.done = met
    await _complete(self, *attempt)


RARE: dict[str, Mutant] = {
    "no tombstones": mutant("I7", 454, (Tombstones, "refuses", lambda *_: False)),
    "a late read counts as a newer attempt": mutant("I7 I2", 586, (claims, "_check", _never_late)),
    "a cancel overtakes a written end": aimed(
        mutant("I2", 4, (LiveCall, "cancel", _at_any_time)),
        (LiveCall, "_complete", _cancelled_at_the_end),
    ),
    "a long gap fails the stream": aimed(
        mutant("I2", 8, (Assembler, "accept", _no_patience)), (assembler, "_MOST_HELD", 4)
    ),
    "a guest mixes two attempts": mutant("I1", 510, (Assembler, "begin", _forget_sources)),
}
