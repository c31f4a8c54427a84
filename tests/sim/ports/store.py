"""The store port: one ledger of records behind the network, and each process' view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from libs.bus.api import BusDown, Conflict, RequestTimeout, StoreUnknown, Versioned
from proto.base import Message, decode, encode
from tests.sim.kernel.trace import Trace
from tests.sim.ports.bus import SimBus
from tests.sim.ports.network import LinkState, SimNetwork

__all__ = ["SimLedger", "SimStore", "StoreFaults"]

RecordT = TypeVar("RecordT", bound=Message)

_ACK_TIMEOUT_S = 1.0
_PAGE = 8


@dataclass(slots=True)
class StoreFaults:
    """What goes wrong at the store, while faults are on."""

    lost_ack: float = 0.0
    """The chance that a write is not acknowledged; half of these writes happened."""
    stale_read: float = 0.0
    """The chance that a read sees what was true up to `stale_s` ago."""
    stale_s: float = 0.5
    away: bool = False
    """The leader is gone: nothing is answered."""


@dataclass(slots=True)
class _Row:
    revision: int
    data: bytes
    at_s: float


@dataclass(slots=True)
class SimLedger:
    """All records, with their history."""

    network: SimNetwork
    trace: Trace
    faults: StoreFaults = field(default_factory=StoreFaults)
    rows: dict[str, list[_Row]] = field(default_factory=dict)
    last: int = 0
    watchers: list[Callable[[str, str, bytes | None, bytes], None]] = field(default_factory=list)
    """Told of every write: by whom, the key, the record before and after."""

    def write(self, who: str, key: str, data: bytes, revision: int) -> int | None:
        """Write if the newest revision is `revision` (0: absent); return the new one or None."""
        history = self.rows.get(key)
        newest = history[-1].revision if history else 0
        if newest != revision:
            self.trace.note("conflict", f"{who} {key} {revision} is {newest}")
            return None
        self.last += 1
        before = history[-1].data if history else None
        self.rows.setdefault(key, []).append(_Row(self.last, data, self.network.loop.time()))
        self.trace.note("write", f"{who} {key} {self.last}")
        for watcher in self.watchers:
            watcher(who, key, before, data)
        return self.last

    def read(self, key: str, *, stale: bool) -> _Row | None:
        """Return the newest row, or one that was the newest a short while ago."""
        history = self.rows.get(key, [])
        if not stale:
            return history[-1] if history else None
        horizon = self.network.loop.time() - self.faults.stale_s
        old = [row for row in history if row.at_s <= horizon]
        return old[-1] if old else None

    def page(self, since: int, *, stale: bool) -> list[tuple[str, _Row]]:
        """Return the oldest rows after a revision, as one reader sees them."""
        seen = ((key, self.read(key, stale=stale)) for key in self.rows)
        rows = [(key, row) for key, row in seen if row is not None and row.revision > since]
        return sorted(rows, key=lambda found: found[1].revision)[:_PAGE]


class SimStore(Generic[RecordT]):
    """One process' view of the ledger.

    Args:
        ledger: the truth.
        bus: the connection that carries this process' reads and writes.
        kind: the class of the records.
    """

    def __init__(self, ledger: SimLedger, bus: SimBus, kind: type[RecordT]) -> None:
        self._ledger = ledger
        self._bus = bus
        self._kind = kind

    async def get(self, key: str) -> Versioned[RecordT] | None:
        """Return the newest record that this reader can see."""
        faults = self._ledger.faults
        stale = bool(faults.stale_read) and self._random() < faults.stale_read
        row: _Row | None = await self._ask(
            lambda: self._ledger.read(key, stale=stale), RequestTimeout
        )
        if row is None:
            return None
        return Versioned(decode(row.data, self._kind), row.revision)

    async def create(self, key: str, value: RecordT) -> int:
        """Write a record whose key must be absent."""
        return await self._write(key, value, 0)

    async def update(self, key: str, value: RecordT, revision: int) -> int:
        """Replace the record that has `revision`."""
        return await self._write(key, value, revision)

    async def scan(self, since: int = 0) -> AsyncIterator[tuple[str, Versioned[RecordT]]]:
        """Go through all live records, in pages: each begins where the one before has ended."""
        faults = self._ledger.faults
        stale = bool(faults.stale_read) and self._random() < faults.stale_read
        while True:
            page: list[tuple[str, _Row]] = await self._ask(
                partial(self._ledger.page, since, stale=stale), RequestTimeout
            )
            for key, row in page:
                since = row.revision
                yield key, Versioned(decode(row.data, self._kind), row.revision)
            if len(page) < _PAGE:
                return

    async def _write(self, key: str, value: RecordT, revision: int) -> int:
        data = encode(value)
        who = self._bus.link.name
        done: int | None = await self._ask(
            lambda: self._ledger.write(who, key, data, revision), StoreUnknown, lossy=True
        )
        if done is None:
            raise Conflict(key)
        return done

    async def _ask(
        self, work: Callable[[], Any], lost: type[Exception], *, lossy: bool = False
    ) -> Any:
        link = self._bus.link
        network = self._ledger.network
        if not self._bus.connected:
            raise BusDown(link.name)
        faults = self._ledger.faults
        if faults.away and self._random() < 0.5:
            # Nobody answers for the stream: asked again until the time is up, then certain.
            await asyncio.sleep(_ACK_TIMEOUT_S * 0.75)
            raise BusDown(link.name)
        answer: asyncio.Future[Any] = network.loop.create_future()
        epoch = link.epoch
        lost_ack = lossy and bool(faults.lost_ack) and self._random() < faults.lost_ack
        lost_request = lost_ack and self._random() < 0.5

        def arrive() -> None:
            if faults.away or lost_request or not network.up or link.state is LinkState.HALF:
                return
            result = work()
            if not lost_ack:
                network.later(network.latency(), respond, result)

        def respond(result: Any) -> None:
            if link.state is LinkState.UP and link.epoch == epoch and not answer.done():
                answer.set_result(result)

        if link.state is LinkState.UP:
            network.later(network.latency(), arrive)
        try:
            async with asyncio.timeout(_ACK_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            raise lost(link.name) from error

    def _random(self) -> float:
        return self._ledger.network.rng.random()
