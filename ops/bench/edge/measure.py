"""The measurements: time to the first token, throughput, CPU, disconnects, and the start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ops.bench.edge.client import Load, Stream, drive, request_of
from ops.bench.edge.target import Target, cpu_seconds, rss_mib
from ops.cli.stack.ports import free_port
from ops.cli.stack.probe import http_ready
from ops.cli.views.link import read_events
from proto.events import EventKind
from proto.ids import RequestId

__all__ = ["Cost", "Start", "first_token", "freed_after_leaving", "gateway_start", "loaded"]

_WARM = 20
_EVENTS_BEFORE_LEAVING = 20
_FREED_S = 5.0
_START_S = 20.0
_MS = 1000.0


@dataclass(slots=True)
class Cost:
    """What answering under load took, over all repeats of one target."""

    tokens_a_second: list[float] = field(default_factory=list[float])
    first_ms: list[float] = field(default_factory=list[float])
    parts: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """CPU seconds a million tokens, by part."""
    failures: list[str] = field(default_factory=list[str])

    @property
    def cpu(self) -> float:
        """CPU seconds a million tokens of all processes."""
        return sum(median(values) for values in self.parts.values())


@dataclass(frozen=True, slots=True)
class Start:
    """One more gateway beside those that run."""

    alive_s: float
    """Until it answered for the first time."""
    ready_s: float
    """Until a request of its own had gone the whole way."""
    rss_mib: float


async def first_token(target: Target, requests: int) -> list[float]:
    """Return the times to the first event of answers, one at a time, in milliseconds."""
    await drive(target.port, target.model, streams=1, tokens=4, requests=_WARM)
    load = await drive(target.port, target.model, streams=1, tokens=16, requests=requests)
    _check(load)
    return load.first_ms


async def loaded(target: Target, cost: Cost, *, streams: int, tokens: int, requests: int) -> None:
    """Answer many requests at once and add what that took."""
    await drive(target.port, target.model, streams=streams, tokens=4, requests=streams)
    before = cpu_seconds(target)
    load = await drive(target.port, target.model, streams=streams, tokens=tokens, requests=requests)
    after = cpu_seconds(target)
    cost.failures += load.failures
    count = tokens * len(load.answers)
    if not count:
        return
    cost.tokens_a_second.append(count / load.took_s)
    cost.first_ms.append(median(load.first_ms))
    for name, seconds in after.items():
        cost.parts.setdefault(name, []).append((seconds - before[name]) / count * 1e6)


async def freed_after_leaving(target: Target, tries: int) -> list[float]:
    """Hang up in the middle of answers; return when both sides were free, in milliseconds.

    The times are those at which the workers say that they hold nothing any more.

    Raises:
        RuntimeError: a side was not free in time.
    """
    if target.record is None:
        raise ValueError(target.name)
    loop, read = asyncio.get_running_loop(), read_events(target.record.nats_url)
    spent: list[float] = []
    for number in range(tries):
        _, stream = await loop.create_connection(Stream, "127.0.0.1", target.port)
        asked = stream.ask(request_of(target.port, target.model, 4000, number))
        await stream.until(_EVENTS_BEFORE_LEAVING)
        left_ms = time.time() * _MS
        if stream.transport is not None:
            stream.transport.abort()
        await asyncio.wait([asked])
        asked.exception()
        rid = RequestId(_header(stream.head, b"x-request-id"))
        until = loop.time() + _FREED_S
        while True:
            ended = [e.at_ms for e in await read(rid) if e.kind is EventKind.LEASE_ENDED]
            # One lease is that of prefill, which has ended when its KV had left.
            if len(ended) > 1:
                break
            if loop.time() > until:
                raise RuntimeError(f"{rid}: not free after {_FREED_S} s")
            await asyncio.sleep(0.02)
        spent.append(max(ended) - left_ms)
    return spent


async def gateway_start(target: Target, model: Path) -> Start:
    """Start one more gateway beside a stack, and end it.

    Raises:
        RuntimeError: it did not become ready.
    """
    if target.record is None:
        raise ValueError(target.name)
    port = free_port()
    with tempfile.TemporaryDirectory() as state:
        command = [
            *(sys.executable, "-m", "services.gateway", "--nats", target.record.nats_url),
            *("--health-port", str(port), "--port", "0", "--state-dir", state),
            *("--model", target.model, "--model-path", str(model)),
        ]
        began = time.monotonic()
        child = subprocess.Popen(  # noqa: ASYNC220 - its start is what is measured
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            alive_s = await _until_ok(port, "/livez", began)
            ready_s = await _until_ok(port, "/readyz", began)
            return Start(alive_s, ready_s, rss_mib(child.pid))
        finally:
            child.terminate()
            await asyncio.to_thread(child.wait)


async def _until_ok(port: int, path: str, began: float) -> float:
    while not (await http_ready(port, path)).ready:
        if time.monotonic() - began > _START_S:
            raise RuntimeError(f"the gateway did not answer {path}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b": ")
        if key.lower() == name:
            return value.decode()
    raise RuntimeError(f"no {name!r} in the answer")


def _check(load: Load) -> None:
    if load.failures:
        raise RuntimeError(load.failures[0])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
