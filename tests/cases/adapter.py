"""The handles of the public cases, mapped onto this product.

Cases speak of gauges, counters, registries, slots and scripted engines; here is what they are in
pdbus, and the bounds that the product promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import nats

from libs.bus import BucketSpec
from libs.clock import SystemClock
from proto.base import decode
from proto.decode import DecodeStart
from proto.events import Event, EventKind
from proto.ids import new_request_id
from proto.ledger import RequestRecord, RequestState
from proto.prefill import PrefillStart
from proto.subjects import BUCKET_REQUESTS
from proto.workers import Role
from tests.support.http_client import Exchange, Reply, chat_body, get
from tests.support.stack import RunningStack
from tests.support.witness import Witness, witness
from tests.support.words import NAME

__all__ = [
    "AGAIN_S",
    "ANSWER_S",
    "ENDS",
    "FREED_S",
    "REFUSED_S",
    "Flow",
    "Processes",
    "Product",
    "Sent",
    "Start",
    "Supervised",
    "ask",
    "body_of",
    "chunks",
    "faults",
    "hang_up_hard",
    "open_product",
    "opened",
    "ticks",
]

# Bounds that the product promises, in seconds.

FREED_S = 2.0
"""From a disconnect to free KV on both sides."""
ANSWER_S = 5.0
"""From the death of a process to a typed error, or an answer."""
REFUSED_S = 1.0
"""Until a request that cannot be served is refused."""
AGAIN_S = 10.0
"""From a death until the new process is used."""

ENDS = {
    EventKind.REQUEST_DONE: RequestState.DONE,
    EventKind.REQUEST_FAILED: RequestState.FAILED,
    EventKind.REQUEST_CANCELLED: RequestState.CANCELLED,
}
"""Terminal events, and the state that the ledger must show with each."""

_TIME_DIGITS, _ID_DIGITS = 10, 26
_GATHERED_S = 0.5
"""Of a request id: those that are its time, and all."""
_SUBJECT = re.compile(r"pdbus\.v1\.(prefill|decode)\.([^.]+)\.([^.]+)\.start")
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Processes(Protocol):
    """The processes of a stack, whoever keeps them."""

    @property
    def port(self) -> int:
        """Port of the first gateway."""
        ...

    @property
    def nats_url(self) -> str:
        """Address of the bus."""
        ...

    @property
    def names(self) -> list[str]:
        """`<role>-<number>` of each service."""
        ...

    def pid(self, name: str) -> int:
        """Return the process id of one living process."""
        ...

    def health_port(self, name: str) -> int:
        """Return where it answers /readyz and /metrics."""
        ...

    def instance(self, name: str) -> str:
        """Return its name on the bus."""
        ...

    def log(self, name: str) -> str:
        """Return what it has logged."""
        ...


@dataclass(frozen=True, slots=True)
class Supervised:
    """The processes of `pdbus up`."""

    stack: RunningStack

    @property
    def port(self) -> int:
        """Port of the first gateway."""
        return self.stack.port

    @property
    def nats_url(self) -> str:
        """Address of the bus."""
        return self.stack.record.nats_url

    @property
    def names(self) -> list[str]:
        """`<role>-<number>` of each service."""
        return [slot.name for slot in self.stack.record.slots if slot.role != "nats"]

    def pid(self, name: str) -> int:
        """Return the process id of one living process."""
        return self.stack.pid(name)

    def health_port(self, name: str) -> int:
        """Return where it answers /readyz and /metrics."""
        return self.stack.slot(name).health_port

    def instance(self, name: str) -> str:
        """Return its name on the bus."""
        return self.stack.slot(name).instance

    def log(self, name: str) -> str:
        """Return what it has logged."""
        return Path(self.stack.slot(name).log).read_text(encoding="utf-8")


# The scripted engine


def faults(*rules: dict[str, Any], **profile: Any) -> str:
    """Return the script of a worker: what befalls which prompt, and how fast the engine is."""
    return json.dumps({"faults": list(rules), "profile": profile})


def body_of(text: str, tokens: int = 8, **fields: Any) -> dict[str, Any]:
    """Return a body whose answer has exactly so many tokens, each a word."""
    asked = {"model": NAME, "max_tokens": tokens, "ignore_eos": True, "stream": True} | fields
    return chat_body(text, **asked)


# Traffic


async def opened(port: int, text: str, tokens: int = 8, **fields: Any) -> Exchange:
    """Send a request and leave its connection open; `headers` are HTTP headers."""
    headers = fields.pop("headers", None)
    data = json.dumps(body_of(text, tokens, **fields)).encode()
    return await Exchange.open(port, "POST", "/v1/chat/completions", data, headers=headers)


async def ask(
    port: int, text: str, tokens: int = 8, *, timeout_s: float = 30.0, **fields: Any
) -> Reply:
    """Send a request and return its whole reply."""
    return await (await opened(port, text, tokens, **fields)).finish(timeout_s)


def hang_up_hard(exchange: Exchange) -> None:
    """Reset the connection (RST)."""
    writer = exchange._writer
    link: socket.socket = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def chunks(exchange: Exchange, count: int, timeout_s: float = 30.0) -> None:
    """Read until so many pieces of the answer have come; the connection stays open."""
    async with asyncio.timeout(timeout_s):
        while exchange.reply.body.count(b'"content":" ') < count:
            data = await exchange._reader.read(65536)
            assert data, exchange.reply
            exchange._take(data)


async def ticks(exchange: Exchange, timeout_s: float = 30.0) -> list[float]:
    """Read to the end; return when something arrived, in seconds of the loop."""
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    async with asyncio.timeout(timeout_s):
        while data := await exchange._reader.read(65536):
            exchange._take(data)
            times.append(loop.time())
    exchange.hang_up()
    return times


@dataclass(slots=True)
class Sent:
    """One request of a flow."""

    at_s: float
    """When it was sent, in seconds of the loop."""
    end_s: float = 0.0
    reply: Reply = field(default_factory=Reply)
    refused: bool = False
    """The gateway could not be reached."""

    @property
    def good(self) -> bool:
        """Whether it has a complete answer."""
        return self.reply.claims_completeness


class Flow:
    """Steady traffic in the background, until `stop`.

    Args:
        make: sends the request of a number, and returns its reply.
        rate: requests a second.
    """

    def __init__(self, make: Callable[[int], Awaitable[Reply]], rate: float) -> None:
        self.sent: list[Sent] = []
        self._make = make
        self._rate = rate
        self._flights: list[asyncio.Task[None]] = []
        self._source = asyncio.ensure_future(self._run())

    async def stop(self) -> list[Sent]:
        """Send no more; return all once they have ended."""
        self._source.cancel()
        await asyncio.wait([self._source])
        await asyncio.gather(*self._flights)
        return self.sent

    def in_flight(self, at_s: float) -> list[Sent]:
        """Return the requests that were under way at a time; valid after `stop`."""
        return [one for one in self.sent if one.at_s <= at_s <= one.end_s]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            sent = Sent(loop.time())
            self.sent.append(sent)
            self._flights.append(asyncio.ensure_future(self._send(len(self.sent), sent)))
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _send(self, number: int, sent: Sent) -> None:
        try:
            sent.reply = await self._make(number)
        except ConnectionError:
            sent.refused = True
        sent.end_s = asyncio.get_running_loop().time()


# What the product tells


@dataclass(frozen=True, slots=True)
class Start:
    """A start as it went over the bus."""

    subject: str
    role: str
    instance: str
    incarnation: str
    message: PrefillStart | DecodeStart
    data: bytes


class Product:
    """A running stack with everything that it tells of itself."""

    def __init__(self, processes: Processes, seen: Witness) -> None:
        self.processes = processes
        self.seen = seen
        self._links: list[Exchange] = []
        self._first = ""

    @property
    def port(self) -> int:
        """Port of the first gateway."""
        return self.processes.port

    # From rest to rest

    async def settle(self) -> None:
        """Wait until all workers are there and at rest, and forget what was before."""
        names = [n for n in self.processes.names if n.startswith(("prefill", "decode"))]
        await self.seen.until(lambda: self._present(names), 30, "all workers")
        await self.at_rest(30)
        self.seen.events.clear()
        self.seen.cancels.clear()
        clock = SystemClock()
        # Ids sort by time: later words about older requests are none of this test's.
        self._first = new_request_id(clock.unix_ms(), clock.entropy)[:_TIME_DIGITS]

    def is_old(self, rid: str) -> bool:
        """Return whether a request came before this test."""
        return len(rid) == _ID_DIGITS and rid < self._first

    def hang_up(self) -> None:
        """Close all connections that a test has left open."""
        for link in self._links:
            link.hang_up()
        self._links.clear()

    def _present(self, names: Iterable[str]) -> bool:
        with contextlib.suppress(AssertionError):  # a process that is just being replaced
            wanted = {self.processes.instance(name) for name in names}
            beats = self.seen.beats.values()
            return wanted <= {b.instance for b in beats if b.state == "ready"}
        return False

    # Traffic

    async def open(self, text: str, tokens: int = 8, **fields: Any) -> Exchange:
        """As `opened`, at the first gateway; closed at the end of the test at the latest."""
        exchange = await opened(self.port, text, tokens, **fields)
        self._links.append(exchange)
        return exchange

    async def ask(self, text: str, tokens: int = 8, **fields: Any) -> Reply:
        """As `ask`, at the first gateway."""
        return await ask(self.port, text, tokens, **fields)

    # Gauges and counters

    async def samples(self, name: str) -> list[tuple[str, dict[str, str], float]]:
        """Return the metrics of one process: name, labels, value."""
        page = await get(self.processes.health_port(name), "/metrics")
        return [
            (found[1], dict(_LABEL.findall(found[2] or "")), float(found[3]))
            for line in page.body.decode().splitlines()
            if (found := _SAMPLE.fullmatch(line)) and not line.startswith("#")
        ]

    async def total(self, role: str, metric: str, **labels: str) -> float:
        """Return the sum of a metric over the processes of a role, or over one process."""
        names = [n for n in self.processes.names if role in {n, n.rpartition("-")[0]}]
        pages = await asyncio.gather(*(self.samples(name) for name in names))
        return sum(
            value
            for page in pages
            for name, have, value in page
            if name == metric and labels.items() <= have.items()
        )

    async def ready(self, name: str) -> Reply:
        """Return the answer of one process to a readiness probe."""
        return await get(self.processes.health_port(name), "/readyz")

    def kv(self) -> int:
        """Return the KV tokens that all engines hold, by their last heartbeats."""
        return self.seen.kv_used()

    async def freed(self, within_s: float = FREED_S) -> None:
        """Wait until no engine holds KV and no lease is open."""
        await self.seen.until(lambda: not self.kv(), within_s, "free KV on both sides")
        await self.seen.until(lambda: not self.seen.leases(), ANSWER_S, "no open lease")

    async def at_rest(self, within_s: float = 10.0) -> None:
        """Wait until all gauges are back at their base: exactly zero."""
        await self.freed(within_s)
        for metric in ("pdbus_gateway_inflight_requests", "pdbus_gateway_queued_requests"):
            async with asyncio.timeout(within_s):
                while await self.total("gateway", metric):
                    await asyncio.sleep(0.05)

    # Requests

    def failures(self) -> list[Event]:
        """Return the events of requests of this test that have failed."""
        mine = (e for e in self.seen.events if str(e.rid) >= self._first)
        return [event for event in mine if event.kind is EventKind.REQUEST_FAILED]

    async def ended(self, rids: Collection[str] = (), within_s: float = 10.0) -> Counter[str]:
        """Check that requests have ended once each, and return how often in which way.

        Each has one terminal event, and the ledger agrees. Without `rids`: all that were accepted
        since this listens.
        """
        # Events are gathered for a moment before they leave.
        await asyncio.sleep(_GATHERED_S)
        # One may be cancelled while its record is being written.
        wanted = set(rids) or self.accepted() | self._rids(*ENDS)
        await self.seen.until(
            lambda: wanted <= {str(e.rid) for e in self.seen.events if e.kind in ENDS},
            within_s,
            "the end of each request",
        )
        store = self.seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
        states: Counter[str] = Counter()
        for rid in wanted:
            told = [ENDS[event.kind] for event in self.ends(rid)]
            found = await store.get(rid)
            assert found is not None, rid
            assert told == [found.value.state], (rid, told, self.seen.report([rid]))
            states[found.value.state] += 1
        return states

    def accepted(self) -> set[str]:
        """Return the requests that were accepted since this listens."""
        return self._rids(EventKind.REQUEST_ACCEPTED)

    def cancels(self) -> list[str]:
        """Return the requests whose cancel was told to all workers."""
        return [str(c.rid) for c in self.seen.cancels if str(c.rid) >= self._first]

    def ends(self, rid: str) -> list[Event]:
        """Return the terminal events of a request."""
        return self.seen.of(rid, *ENDS)

    async def newest(self, number: int = 1, within_s: float = 5.0) -> str:
        """Wait until so many requests are accepted, and return the newest."""
        await self.seen.until(lambda: len(self.accepted()) >= number, within_s, "acceptance")
        rid = self.seen.newest_request()
        assert rid is not None
        return rid

    def executions(self) -> Counter[tuple[str, int]]:
        """Return how often the prompt of each attempt was computed."""
        return Counter(
            (str(e.rid), e.attempt)
            for e in self.seen.events
            if e.kind is EventKind.STAGE_PREFILL and "tokens" in e.data
            if str(e.rid) >= self._first
        )

    def access(self) -> dict[str, dict[str, Any]]:
        """Return the lines of the access log by the `x-request-id` that their client gave."""
        lines = [
            json.loads(line)
            for name in self.processes.names
            if name.startswith("gateway")
            for line in self.processes.log(name).splitlines()
            if '"request served"' in line
        ]
        return {line["client_request_id"]: line for line in lines if "client_request_id" in line}

    def _rids(self, *kinds: EventKind) -> set[str]:
        rids = {str(e.rid) for e in self.seen.events if e.kind in kinds}
        return {rid for rid in rids if rid >= self._first}

    # The bus

    @asynccontextmanager
    async def starts(self) -> AsyncIterator[list[Start]]:
        """Collect the starts that go over the bus."""
        found: list[Start] = []

        async def hear(message: Any) -> None:
            match = _SUBJECT.fullmatch(message.subject)
            assert match is not None
            kind = PrefillStart if match[1] == Role.PREFILL else DecodeStart
            start = decode(message.data, kind)
            found.append(Start(message.subject, *match.groups(), start, message.data))

        client = await nats.connect(self.processes.nats_url)
        try:
            for role in (Role.PREFILL, Role.DECODE):
                await client.subscribe(f"pdbus.v1.{role}.*.*.start", cb=hear)
            await client.flush()
            yield found
            await client.flush()
            # What has come is handed over by a task of its own.
            await asyncio.sleep(0.05)
        finally:
            await client.close()


@asynccontextmanager
async def open_product(processes: Processes) -> AsyncIterator[Product]:
    """Watch a stack."""
    async with witness(processes.nats_url) as seen:
        product = Product(processes, seen)
        await product.settle()
        yield product
