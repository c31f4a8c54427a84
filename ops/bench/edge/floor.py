"""What the message broker takes at least, and how many messages a request needs of it.

The floor is a bare exchange between two connections of one process, on a broker of its own: what
a step of the protocol costs beyond it is ours.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from libs.bus import BucketSpec, BusSettings, NatsBus, open_bus
from libs.bus.api import Endpoint
from libs.bus.frames import Delivery
from libs.bus.testing import NatsServer
from libs.clock import SystemClock
from libs.lifecycle import Tasks
from ops.bench.edge.client import drive
from ops.bench.edge.target import Target, thread_seconds
from proto.control import Abort, Aborted
from proto.ids import RequestId
from proto.subjects import template

__all__ = ["Floor", "floors", "messages"]

_TURNS, _WARM = 600, 50
_RECORD_BYTES = 700
_SETTLE_S = 1.0
_US = 1e6
_SUBJECT = "bench.floor"


@dataclass(frozen=True, slots=True)
class Floor:
    """One kind of exchange, one at a time."""

    what: str
    p50_us: float
    server_us: float
    """CPU time of the broker."""
    clients_us: float
    """CPU time of both ends together."""


async def floors() -> list[Floor]:
    """Measure bare exchanges over a broker that does nothing else."""
    with tempfile.TemporaryDirectory(prefix="pdbus-floor-") as folder:
        server = NatsServer(Path(folder))
        await server.start()
        try:
            async with _bus(server.url) as one, _bus(server.url) as other:
                return await _measure(server, one, other)
        finally:
            server.stop()


async def _measure(server: NatsServer, one: NatsBus, other: NatsBus) -> list[Floor]:
    small = Abort(rid=RequestId("floor"), attempt=0)
    record = Abort(rid=RequestId("floor"), attempt=0, reason="x" * _RECORD_BYTES)

    async def answer(ask: Abort) -> Aborted:
        return Aborted(rid=ask.rid)

    await other.serve(Endpoint("floor", _SUBJECT, Abort, answer))
    store = one.store(BucketSpec(name="FLOOR"), Abort)
    revision = await store.create("k", record)

    async def ask(_turn: int) -> None:
        await one.request(_SUBJECT, small, Aborted, timeout_s=5.0)

    async def create(turn: int) -> None:
        await store.create(f"k{turn}", record)

    async def update(_turn: int) -> None:
        nonlocal revision
        revision = await store.update("k", record, revision)

    async def read(_turn: int) -> None:
        await store.get("k")

    steps = {
        "request and reply": ask,
        "ledger create": create,
        "ledger update": update,
        "ledger read": read,
    }
    return [await _timed(what, server.pid, step) for what, step in steps.items()]


async def _timed(what: str, pid: int, step: Callable[[int], Awaitable[None]]) -> Floor:
    for turn in range(_WARM):
        await step(turn)
    spent: list[float] = []
    server_s, clients_s = thread_seconds(pid), time.process_time()
    for turn in range(_WARM, _WARM + _TURNS):
        began = time.perf_counter()
        await step(turn)
        spent.append(time.perf_counter() - began)
    clients_s = time.process_time() - clients_s
    server_s = thread_seconds(pid) - server_s
    each = _US / _TURNS
    return Floor(what, median(spent) * _US, server_s * each, clients_s * each)


async def messages(target: Target, requests: int) -> dict[str, float]:
    """Return how many messages of each kind go through the broker for one short answer."""
    if target.record is None:
        raise ValueError(target.name)
    seen: Counter[str] = Counter()

    def hear(message: Delivery) -> None:
        seen[_kind(message.subject)] += 1

    async with _bus(target.record.nats_url) as bus:
        await bus.link.listen(">", hear)
        await drive(target.port, target.model, streams=1, tokens=1, requests=requests)
        # What follows a request, and what goes on without one, both count.
        await asyncio.sleep(_SETTLE_S)
    return {kind: number / requests for kind, number in seen.most_common()}


def _kind(subject: str) -> str:
    if subject.startswith("$KV."):
        return "ledger writes"
    if subject.startswith("$JS.API.DIRECT.GET."):
        return "ledger reads"
    if subject.startswith("_INBOX."):
        return "replies and acknowledgements"
    return template(subject)


@asynccontextmanager
async def _bus(url: str) -> AsyncGenerator[NatsBus]:
    async with Tasks() as tasks:
        bus = await open_bus(BusSettings(urls=(url,), name="bench-floor"), SystemClock(), tasks)
        try:
            yield bus
        finally:
            await bus.close()
