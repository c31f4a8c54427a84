"""A stack whose services reach nats-server through proxies, and what may be done to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil

from ops.cli.stack.ports import free_port
from ops.cli.stack.record import SlotRecord, SlotState, StackRecord, load
from tests.chaos.world.routed_up import MONITOR, MORE, ROUTES
from tests.chaos.world.sockets import sever
from tests.support.http_client import get
from tests.support.proxy import Proxy, open_proxy
from tests.support.stack import RunningStack, StackFailed, start_stack

__all__ = ["NATS", "ON_TCP", "WORKERS", "ChaosStack", "Size", "open_stack"]

NATS = "nats-0"
ON_TCP = "decode-1"
"""A worker whose KV may come over TCP, as from another host, so that its pairs can be parted."""
WORKERS = ("prefill", "decode")
_PROGRAM = "tests.chaos.world.routed_up"
_READY_S = 120.0
_POLL_S = 0.05
_OPEN_ROOMS = "pdbus_kv_inflight_transfers{"


class Size:
    """How many processes of each role there are."""

    def __init__(self, **counts: int) -> None:
        self.counts = {"gateway": 2, "router": 2, "prefill": 2, "decode": 2, "cleanup": 1} | counts

    @property
    def slots(self) -> list[str]:
        """Names of all services."""
        return [f"{role}-{n}" for role, count in self.counts.items() for n in range(count)]

    @property
    def arguments(self) -> list[str]:
        """As options of `pdbus up`."""
        plural = {"gateway": "gateways", "router": "routers", "cleanup": "cleanups"}
        return [f"--{plural.get(role, role)}={count}" for role, count in self.counts.items()]


class ChaosStack:
    """A running stack, its proxies, and the ways to hurt it."""

    def __init__(
        self, running: RunningStack, proxies: Mapping[str, Proxy], monitor_port: int
    ) -> None:
        self.running = running
        self.proxies = proxies
        self.monitor_port = monitor_port
        self._ports: list[int] = []

    @property
    def record(self) -> StackRecord:
        """What the supervisor knows now."""
        return self.running.record

    @property
    def nats_url(self) -> str:
        """The server itself, without a proxy."""
        return self.record.nats_url

    @property
    def gateway_ports(self) -> list[int]:
        """HTTP ports; they stay the same over restarts."""
        if not self._ports:
            self._ports = [int(url.rpartition(":")[2]) for url in self.record.urls]
        return self._ports

    @property
    def model_path(self) -> Path:
        """Where tokenizer and template of the model are."""
        return self.running.state_dir / "models" / "scripted"

    def slot(self, name: str) -> SlotRecord:
        """Return what is known of one process."""
        return self.record.slot(name)

    def instances(self) -> dict[str, str]:
        """Return the slot of each instance name."""
        return {slot.instance: slot.name for slot in self.record.slots}

    def signal(self, name: str, number: int) -> int | None:
        """Send a signal to a process; return its id, or None if it does not run."""
        pid = self.slot(name).pid
        return pid if pid is not None and _signal(pid, number) else None

    def host(self, name: str) -> int | None:
        """Return the process id of a worker's engine host."""
        pid = self.slot(name).pid
        try:
            children = psutil.Process(pid).children() if pid is not None else []
            hosts = [child.pid for child in children if "libs.engine.host" in child.cmdline()]
        except psutil.Error:
            return None
        return hosts[0] if hosts else None

    def signal_host(self, name: str, number: int) -> int | None:
        """Send a signal to a worker's engine host."""
        pid = self.host(name)
        return pid if pid is not None and _signal(pid, number) else None

    def sever(self, one: str, other: str) -> int:
        """Reset the connections between two workers' engine hosts; return how many there were."""
        first, second = self.host(one), self.host(other)
        if first is None or second is None:
            return 0
        try:
            return sever(first, second)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0  # killed just now, or not ours to touch on this machine

    async def is_moving(self, name: str) -> bool:
        """Return whether a worker's engine has open rooms, by the worker's own metrics."""
        try:
            page = await get(self.slot(name).health_port, "/metrics", timeout_s=1)
        except (OSError, TimeoutError):
            return False
        rows = [row for row in page.body.decode().splitlines() if row.startswith(_OPEN_ROOMS)]
        return any(float(row.rpartition(" ")[2]) > 0 for row in rows)

    async def ready_again(self, name: str, pid: int, timeout_s: float) -> bool:
        """Wait until a slot has a ready process that is not `pid`."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    slot = self.slot(name)
                    if slot.pid not in {None, pid} and slot.state is SlotState.READY:
                        return True
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False

    async def all_ready(self, timeout_s: float) -> list[str]:
        """Wait until every process is ready; return those that are not."""
        try:
            async with asyncio.timeout(timeout_s):
                while late := self._late():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return late
        return []

    def heal(self) -> None:
        """Let all proxies work and all stopped processes go on."""
        for proxy in self.proxies.values():
            proxy.heal()
        for slot in self.record.slots:
            self.signal(slot.name, signal.SIGCONT)
            if slot.role in WORKERS:
                self.signal_host(slot.name, signal.SIGCONT)

    def _late(self) -> list[str]:
        return [
            f"{slot.name} ({slot.state} {slot.reason})"
            for slot in self.record.slots
            if slot.state is not SlotState.READY
        ]


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def open_stack(
    state_dir: Path,
    size: Size,
    *,
    env: Mapping[str, str],
    routed: Iterable[str] | None = None,
    more: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[ChaosStack]:
    """Run a stack for the length of the context.

    Args:
        state_dir: an empty folder.
        size: how many processes.
        env: variables for all of them.
        routed: the services that get a proxy; None means all.
        more: further arguments of services.
    """
    monitor = free_port()

    def target() -> int | None:
        record = load(state_dir)
        return None if record is None else int(record.nats_url.rpartition(":")[2])

    async with AsyncExitStack() as stack:
        proxies: dict[str, Proxy] = {}
        for name in size.slots if routed is None else routed:
            proxies[name] = await stack.enter_async_context(open_proxy(target))
        routes = {name: f"nats://127.0.0.1:{proxy.port}" for name, proxy in proxies.items()}
        running = start_stack(
            state_dir,
            *size.arguments,
            env={
                **env,
                ROUTES: json.dumps(routes),
                MORE: json.dumps(more or {}),
                MONITOR: str(monitor),
            },
            program=_PROGRAM,
        )
        chaos = ChaosStack(running, proxies, monitor)
        try:
            await asyncio.to_thread(running.wait_ready, _READY_S)
            yield chaos
        finally:
            if running.supervisor.poll() is None and load(state_dir) is not None:
                chaos.heal()
            await _stop(running)


async def _stop(running: RunningStack) -> None:
    try:
        await asyncio.to_thread(running.stop)
    except StackFailed as error:
        print(f"the stack did not stop by itself: {error}")
