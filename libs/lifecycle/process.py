"""The main function of every service: settings, telemetry, bus, signals, drain, exit.

Order of the end: not ready; the service drains; its last tasks are cancelled; the bus is closed;
telemetry is flushed. Exit codes: 0 done, 1 could not start or a second signal, 2 bad settings,
3 the grace ran out.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import uvloop

from libs.bus import BucketSpec, BusError, BusSettings, NatsBus, ServiceIdentity, open_bus
from libs.clock import Clock, SystemClock
from libs.config import HelpWanted, ServiceSettings, SettingsError, load, masked
from libs.lifecycle.api import Build, Parts, Service
from libs.lifecycle.health import HealthServer, Readiness
from libs.lifecycle.parent import die_with_parent
from libs.lifecycle.tasks import Tasks
from libs.lifecycle.turns import ask_for_short_turns
from libs.telemetry import gauge, get_logger, names, observe, setup_telemetry
from proto.ids import Incarnation, InstanceId, new_incarnation, new_instance
from proto.ledger import RequestRecord
from proto.results import StoredResult
from proto.subjects import BUCKET_REQUESTS, BUCKET_RESULTS

__all__ = ["EXIT_GRACE", "EXIT_SETTINGS", "EXIT_START", "run"]

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)
ResultT = TypeVar("ResultT")

EXIT_START = 1
EXIT_SETTINGS = 2
EXIT_GRACE = 3

_RESULTS = BucketSpec(name=BUCKET_RESULTS, ttl_s=600.0, max_bytes=256 << 20, in_memory=True)
"""Answers are text: they stay in the memory of the store and never reach a disk."""
_DRAIN_EXTRA_S = 5.0
"""What a service may take beyond its grace to end what is left."""
_BUS_DRAIN_S = 5.0
"""For the last replies, events and messages."""
_READY_POLL_S = 0.05
_COLLECT_AFTER = (5_000, 20, 10)
"""Objects more than before, then collections of the younger ones, after which one comes."""
_LAG_PERIOD_S = 0.5


def run(service: str, kind: type[SettingsT], build: Build[SettingsT]) -> None:
    """Run one service until a signal; ends the process.

    Args:
        service: its name, also the first part of its variables.
        kind: its settings.
        build: makes it from its parts.
    """
    try:
        settings = load(kind, service, sys.argv[1:], os.environ)
    except HelpWanted as wanted:
        print(wanted)  # noqa: T201 - asked for by a person
        sys.exit(0)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - nothing is set up yet
        sys.exit(EXIT_SETTINGS)
    if settings.die_with_parent:
        die_with_parent()
    clock = SystemClock()
    instance = InstanceId(settings.instance or new_instance(service, clock.entropy))
    telemetry = setup_telemetry(
        service=service, instance=instance, version=_version(), log_level=settings.log_level
    )
    # What nobody foresaw ends the process with a line that log readers understand.
    sys.excepthook = _log_fatal
    process = _Process(service, settings, build, clock, instance)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(process.run())
    finally:
        telemetry.shutdown()
    sys.exit(code)


class _Process(Generic[SettingsT]):
    """One life of one service."""

    def __init__(
        self,
        name: str,
        settings: SettingsT,
        build: Build[SettingsT],
        clock: Clock,
        instance: InstanceId,
    ) -> None:
        self._name = name
        self._settings = settings
        self._build = build
        self._clock = clock
        self._instance = instance
        self._incarnation: Incarnation = new_incarnation(clock.entropy)
        self._stop = asyncio.Event()
        self._signalled = False
        self._bus: NatsBus | None = None
        self._service: Service | None = None

    async def run(self) -> int:
        """Live until a signal comes; return the exit code."""
        log = get_logger()
        log.info("starting", settings=masked(self._settings), pid=os.getpid())
        self._watch_signals()
        gauge(names.READY, lambda: float(self._readiness()[0]), service=self._name)
        loop = asyncio.get_running_loop()
        gauge(names.TASKS, lambda: float(len(asyncio.all_tasks(loop))))
        async with AsyncExitStack() as stack:
            try:
                await self._open_health(stack)
                tasks = await self._start(stack)
            except (BusError, OSError) as error:
                get_logger().error("cannot start", reason=str(error))
                return EXIT_START
            if tasks is None:
                log.info("stopped before the start was complete")
                return 0
            await self._stop.wait()
            in_time = await self._drain()
            await tasks.cancel()
        log.info("stopped", in_time=in_time)
        return 0 if in_time else EXIT_GRACE

    async def _open_health(self, stack: AsyncExitStack) -> None:
        port = self._settings.health_port
        health = HealthServer(port=port, readiness=self._readiness)
        try:
            await health.start()
        except OSError as error:
            raise OSError(f"--health-port {port} cannot be had: {error}") from error
        stack.push_async_callback(health.close)
        self._tell_port(health.port)
        probes = await stack.enter_async_context(Tasks())
        probes.spawn(self._measure_lag(), name="loop lag")
        probes.spawn(self._tell_ready(health.port), name="tell ready")

    async def _start(self, stack: AsyncExitStack) -> Tasks | None:
        """Connect and start the service; None if a signal came before that was done."""
        owner = await stack.enter_async_context(Tasks())
        self._bus = await _unless(self._stop, self._open_bus(owner))
        if self._bus is None:
            return None
        stack.push_async_callback(self._bus.drain, _BUS_DRAIN_S)
        tasks = await stack.enter_async_context(Tasks())
        self._service = await _unless(self._stop, self._make_service(self._bus, tasks))
        if self._service is None:
            return None
        _settle_heap()
        ask_for_short_turns([os.getpid()])
        return tasks

    async def _open_bus(self, owner: Tasks) -> NatsBus:
        wanted = self._settings
        settings = BusSettings(
            urls=wanted.nats,
            name=self._name,
            startup_deadline_s=wanted.start_timeout_s,
            nkey_seed_file=wanted.nats_seed_file,
            tls_ca_file=wanted.nats_ca_file,
        )
        facts = {"incarnation": self._incarnation, "pid": str(os.getpid())}
        identity = ServiceIdentity(self._name, _version(), self._instance, facts)
        return await open_bus(settings, self._clock, owner, identity)

    async def _make_service(self, bus: NatsBus, tasks: Tasks) -> Service:
        parts = Parts(
            settings=self._settings,
            instance=self._instance,
            incarnation=self._incarnation,
            bus=bus,
            store=bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord),
            results=bus.store(_RESULTS, StoredResult),
            clock=self._clock,
            tasks=tasks,
            stop=self._stop.set,
        )
        service = await self._build(parts)
        await service.start()
        return service

    async def _drain(self) -> bool:
        grace_s = self._settings.drain_grace_s
        get_logger().info("draining", grace_s=grace_s)
        if self._service is None:
            return True
        try:
            async with asyncio.timeout(grace_s + _DRAIN_EXTRA_S):
                await self._service.drain(grace_s)
        except TimeoutError:
            get_logger().error("drain took too long", grace_s=grace_s)
            return False
        return True

    def _readiness(self) -> Readiness:
        if self._stop.is_set():
            return False, "draining"
        if self._bus is None or self._service is None:
            return False, "starting"
        if not self._bus.connected:
            return False, "the message bus is not reachable"
        if self._bus.permission_errors:
            return False, self._bus.permission_errors[-1]
        return self._service.readiness()

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._signalled:
            # The operator does not want to wait.
            os._exit(EXIT_START)
        # A signal after an order over the bus is the first one: it asks for what goes on already.
        self._signalled = True
        get_logger().info("stop requested", signal=signal.Signals(number).name)
        self._stop.set()

    def _tell_port(self, port: int) -> None:
        if self._settings.port_file is not None:
            path = Path(self._settings.port_file)
            draft = path.with_suffix(".draft")
            draft.write_text(f"{port}\n", encoding="ascii")
            draft.replace(path)

    async def _tell_ready(self, port: int) -> None:
        while not self._readiness()[0]:
            await self._clock.sleep(_READY_POLL_S)
        get_logger().info("ready", health_port=port)
        print(f"ready {self._instance} health_port={port}", flush=True)  # noqa: T201 - for parents

    async def _measure_lag(self) -> None:
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_LAG_PERIOD_S)
            # Timers of a loop may fire a little early: it counts in whole milliseconds.
            late = self._clock.monotonic() - before - _LAG_PERIOD_S
            observe(names.EVENT_LOOP_LAG, max(0.0, late))


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """Return what the work returns, or None if `stop` was set first."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    waiter = loop.create_task(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        waiter.cancel()
        await asyncio.wait({task, waiter})
        if not task.cancelled():
            # Looked at, so that a failure beside a signal is not reported as forgotten.
            task.exception()


def _settle_heap() -> None:
    """Take what a start has made out of the garbage collector's sight: it stays for ever.

    Otherwise each full collection under load looks through all of it, and requests wait meanwhile.
    Nearly all that a request makes goes without a collection, so they come seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _log_fatal(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    reason = f"{kind.__name__}: {error}"
    get_logger().error("process failed", reason=reason, exc_info=(kind, error, trace))


def _version() -> str:
    try:
        return version("pdbus")
    except PackageNotFoundError:
        return "0.0.0"
