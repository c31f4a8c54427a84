"""Bugs that were found once, by one world of many hundred: they are hunted in that world alone."""

from __future__ import annotations

from typing import Any

from proto.gateway import TokenChunk
from proto.ledger import Cleaned
from services.cleanup import endings
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.follow import Follower
from tests.sim.mutants.plant import Mutant, mutant

__all__ = ["RARE"]


def _of_any_worker(record: Any, freed: set[str]) -> Cleaned:
    attempts = [lease.split(".") for lease in freed if lease]
    sides = {side for _, _, attempt, side in attempts if int(attempt) == record.attempt}
    split = record.placement is not None and record.placement.prefill is not None
    return Cleaned(
        src=record.cleaned.src or "src" in sides or not split,
        dst=record.cleaned.dst or "dst" in sides or record.placement is None,
    )


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


RARE: dict[str, Mutant] = {
    "a lease given back elsewhere counts": mutant("I3", 696, (endings, "_cleaned", _of_any_worker)),
    "old copies count as signs of life": mutant("I2", 887, (Follower, "_take", _old_copies_count)),
    "a guest mixes two attempts": mutant("I1", 793, (Assembler, "begin", _forget_sources)),
}
