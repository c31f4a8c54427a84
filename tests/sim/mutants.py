"""Planted protocol bugs: a simulator that does not find them proves nothing.

Each mutant breaks one rule in the real service classes for as long as its context is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec

from libs.bus.api import BusError
from libs.worker import Worker
from libs.worker.tombstones import Tombstones
from services.cleanup import CleanupService
from services.decode import decode as decode_module
from services.decode.slots import Slots
from services.gateway.attempts.assembler import Assembler
from services.gateway.calls.live import LiveCall
from services.gateway.ledger import Ledger
from services.prefill import PrefillService

__all__ = ["MUTANTS", "planted"]


async def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _no_gap_check(self: Any, chunk: Any) -> list[Any]:
    if chunk.offset < self.next:
        return []
    self.next = chunk.offset + chunk.count
    self.complete = chunk.finish is not None
    return [chunk]


def _no_dedup(self: Any, chunk: Any) -> list[Any]:
    if chunk.offset <= self.next and not self.complete:
        self.next += chunk.count
        self.complete = chunk.finish is not None
        return [chunk]
    self._held[chunk.offset] = chunk
    return []


async def _end_without_cas(self: Any, rid: Any, ending: Any) -> Any:
    try:
        found = await self._store.get(rid)
        if found is None:
            return None
        record = msgspec.structs.replace(
            found.value,
            state=ending.state,
            error=ending.error,
            detail=ending.detail,
            usage=ending.usage,
            ended_ms=self._clock.unix_ms(),
        )
        await self._store.update(rid, record, found.revision)
    except BusError:
        return None
    return record


_prefill_start = PrefillService._handle_start


async def _start_twice(self: Any, start: Any) -> Any:
    self.worker.attempts.pop((start.rid, start.attempt), None)
    return await _prefill_start(self, start)


def _retry_always(self: Any, lost: Any, number: int) -> bool:
    return number == 0


async def _retry_from_zero(self: Any, number: int, exclude: Any) -> None:
    self._assembler.next = 0
    await _attempt(self, number, exclude)


_attempt = LiveCall._attempt


async def _fail_quietly(self: Any, error: Any) -> None:
    self._close(error)
    await self._stop(str(error.code))


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Break one rule for a while."""
    patches = [mock.patch.object(*patch) for patch in MUTANTS[name].patches]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is broken, and the invariants of which one must tell."""

    breaks: frozenset[str]
    patches: tuple[tuple[Any, str, Callable[..., Any]], ...]


def _mutant(breaks: str, *patches: tuple[Any, str, Callable[..., Any]]) -> Mutant:
    return Mutant(frozenset(breaks.split()), patches)


MUTANTS: dict[str, Mutant] = {
    "no gap check": _mutant("I1", (Assembler, "accept", _no_gap_check)),
    "no offset dedup": _mutant("I1", (Assembler, "accept", _no_dedup)),
    "terminal without compare-and-set": _mutant("I2", (Ledger, "_try_end", _end_without_cas)),
    "no tombstones": _mutant("I7", (Tombstones, "refuses", lambda *_: False)),
    "start not idempotent": _mutant(
        "I6 room internal", (PrefillService, "_handle_start", _start_twice)
    ),
    "blind retry after tokens": _mutant(
        "I1", (LiveCall, "_may_retry", _retry_always), (LiveCall, "_attempt", _retry_from_zero)
    ),
    "no cleanup": _mutant(
        "I2 I3 I11",
        (CleanupService, "_scan", _nothing),
        (CleanupService, "_reconcile", _nothing),
    ),
    "reservations never expire": _mutant(
        "I3", (Slots, "_expire", _nothing), (CleanupService, "_consider", _nothing)
    ),
    "aborts do not reach the engine": _mutant("I7", (Worker, "_abort_job", _nothing)),
    "a failed call is not written": _mutant(
        "I2", (LiveCall, "_fail", _fail_quietly), (CleanupService, "_reconcile", _nothing)
    ),
    "claims are not asked for": _mutant("I4", (decode_module, "claim", _nothing)),
}
