"""Bugs that were found once, by one world of many hundred: they are hunted in that world alone."""

from __future__ import annotations

from typing import Any

from proto.errors import ErrorCode, PdbusError
from proto.gateway import TokenChunk
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.follow import Follower
from services.router import claims
from tests.sim.mutants.plant import Mutant, mutant

__all__ = ["RARE"]


_take = Follower._take


def _old_copies_count(self: Any, message: Any) -> Any:
    taken = _take(self, message)
    if isinstance(message, TokenChunk):
        self._decode_heard_s = self._clock.monotonic()
    return taken


_begin = Assembler.begin


def _forget_sources(self: Any, attempt: int) -> None:
    _begin(self, attempt)
    self.inherited = 0


_check = claims._check


def _never_late(record: Any, ask: Any) -> None:
    if record.attempt < ask.attempt and not record.ended:
        raise PdbusError(ErrorCode.STALE_ATTEMPT, "it is another")
    _check(record, ask)


RARE: dict[str, Mutant] = {
    "a late read counts as a newer attempt": mutant("I7 I2", 393, (claims, "_check", _never_late)),
    "old copies count as signs of life": mutant("I2", 1124, (Follower, "_take", _old_copies_count)),
    "a guest mixes two attempts": mutant("I1", 143, (Assembler, "begin", _forget_sources)),
}
