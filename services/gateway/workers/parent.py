"""The parent of a gateway's processes.

It serves nothing to clients: each child listens on the same port, has an identity of its own and
speaks to the bus alone. The parent starts children, starts another when one ends, passes the order
to stop on, and answers probes and scrapes for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from libs.clock import SystemClock
from libs.fleet.announcer import pdbus_version
from libs.lifecycle import HealthServer, Readiness, Tasks
from libs.lifecycle.parent import die_with_parent
from libs.lifecycle.process import EXIT_SETTINGS, EXIT_START
from libs.telemetry import get_logger, setup_telemetry
from proto.ids import new_instance
from services.gateway.settings import Settings
from services.gateway.workers.loopback import fetch
from services.gateway.workers.sums import Sums

__all__ = ["run_workers"]

_SERVICE = "gateway"
_USELESS = frozenset({EXIT_START, EXIT_SETTINGS})
_LAST_S = 10.0
"""What children may take beyond their grace before they are killed."""
_POLL_S = 0.1
_COLLECT_S = 2.0
"""What a process that is killed counted since the last look is lost."""
_STEADY_S = 30.0
_PAUSES_S = (0.2, 1.0, 5.0)
"""Before another process is started, by how many ended early in a row."""


@dataclass(slots=True, eq=False)
class _Child:
    """One place for a process, whoever fills it now."""

    number: int
    instance: str
    process: asyncio.subprocess.Process | None = None
    life: int = 0
    """How many processes it has had."""
    port: int = 0
    """Health port, once it is known."""
    was_ready: bool = False
    ready: bool = False

    @property
    def name(self) -> str:
        """Of the process, for the sums."""
        return f"{self.number}.{self.life}"


@dataclass(slots=True)
class _Parent:
    """All processes of one gateway."""

    settings: Settings
    argv: Sequence[str]
    instance: str
    folder: Path
    children: list[_Child] = field(default_factory=list[_Child])
    sums: Sums = field(default_factory=Sums)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    codes: set[int] = field(default_factory=set[int])

    async def run(self) -> int:
        """Live until a signal comes; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        health = HealthServer(
            port=self.settings.health_port, readiness=self._readiness, collect=self._metrics
        )
        try:
            held = self._hold_port()
            await health.start()
        except OSError as error:
            get_logger().error("cannot start", reason=str(error))
            return EXIT_START
        with held:
            self._tell_port(health.port)
            await self._keep_all(health.port, held.getsockname()[1])
        await health.close()
        get_logger().info("stopped", codes=sorted(self.codes))
        return max(self.codes, default=0)

    async def _keep_all(self, health_port: int, port: int) -> None:
        self.children = [
            _Child(number, f"{self.instance}-{number}") for number in range(self.settings.workers)
        ]
        async with Tasks() as tasks:
            tasks.spawn(self._watch(health_port), name="watch")
            keepers = [
                tasks.spawn(self._keep(child, health_port, port), name=f"keep {child.instance}")
                for child in self.children
            ]
            await self.stop.wait()
            for child in self.children:
                _signal(child, signal.SIGTERM)
            _, late = await asyncio.wait(keepers, timeout=self.settings.drain_grace_s + _LAST_S)
            for child in self.children:
                _signal(child, signal.SIGKILL)
            if late:
                await asyncio.wait(late)

    async def _keep(self, child: _Child, health_port: int, port: int) -> None:
        loop, early = asyncio.get_running_loop(), 0
        while not self.stop.is_set():
            began = loop.time()
            child.life += 1
            child.port = 0
            child.process = await asyncio.create_subprocess_exec(
                *self._command(child, health_port, port), stdin=asyncio.subprocess.DEVNULL
            )
            if self.stop.is_set():
                # The order to stop came while it was started.
                _signal(child, signal.SIGTERM)
            code = await child.process.wait()
            child.process, child.ready = None, False
            self.sums.bury(child.name)
            if self.stop.is_set():
                # One that was still being loaded ends by the signal itself.
                self.codes.add(0 if code == -signal.SIGTERM else EXIT_START if code < 0 else code)
                return
            if child.life == 1 and not child.was_ready and code in _USELESS:
                # It says itself why it cannot start, and the next one could not either.
                get_logger().error("cannot start", process=child.instance, code=code)
                self.codes.add(code)
                self.stop.set()
                return
            early = 0 if loop.time() - began > _STEADY_S else early + 1
            pause_s = _PAUSES_S[min(early, len(_PAUSES_S) - 1)] if early else 0.0
            get_logger().warning(
                "process ended, another one starts",
                process=child.instance,
                code=code,
                pause_s=pause_s,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.stop.wait()

    def _command(self, child: _Child, health_port: int, port: int) -> Sequence[str]:
        # Later flags win over earlier ones, and flags over variables.
        return (
            *(sys.executable, "-m", "services.gateway", *self.argv),
            *("--workers", "1", "--shared-port", "--port", str(port)),
            *("--instance", child.instance, "--health-port", "0"),
            *("--port-file", str(self._port_file(child)), "--metrics-port", str(health_port)),
            *("--limit-share", str(self.settings.limit_share * self.settings.workers)),
            "--die-with-parent",
        )

    def _port_file(self, child: _Child) -> Path:
        return self.folder / f"{child.name}.port"

    async def _watch(self, health_port: int) -> None:
        told, collected_s = False, 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.gather(*(self._probe(child) for child in self.children))
            if not told and self._readiness()[0]:
                told = True
                get_logger().info("ready", health_port=health_port, workers=len(self.children))
                print(f"ready {self.instance} health_port={health_port}", flush=True)  # noqa: T201 - for parents
            if loop.time() - collected_s > _COLLECT_S:
                collected_s = loop.time()
                await self._collect()
            await asyncio.sleep(_POLL_S if not told else 10 * _POLL_S)

    async def _probe(self, child: _Child) -> None:
        name = child.name
        if not child.port:
            with contextlib.suppress(OSError, ValueError):
                # Not written yet: it is asked for again.
                child.port = int(await asyncio.to_thread(self._port_file(child).read_text))
        ready = False
        if child.port:
            with contextlib.suppress(OSError, TimeoutError):
                ready = bool(await fetch(child.port, "/readyz"))
        if name == child.name and child.process is not None:
            child.ready = ready
            child.was_ready = child.was_ready or ready

    async def _metrics(self) -> str:
        await self._collect()
        return self.sums.text()

    async def _collect(self) -> None:
        await asyncio.gather(*(self._collect_one(child) for child in self.children))

    async def _collect_one(self, child: _Child) -> None:
        name, port = child.name, child.port
        if not port:
            return
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            text = (await fetch(port, "/metrics")).decode()
            if name == child.name and child.process is not None:
                # One that does not answer stands with what it said last: no sum falls.
                self.sums.take(name, text)

    def _readiness(self) -> Readiness:
        if self.stop.is_set():
            return False, "draining"
        waiting = [child.instance for child in self.children if not child.was_ready]
        if waiting or not self.children:
            return False, f"not ready yet: {', '.join(waiting)}"
        ready = any(child.ready for child in self.children)
        return ready, "" if ready else "no process is ready"

    def _on_signal(self) -> None:
        if self.stop.is_set():
            # The operator does not want to wait.
            for child in self.children:
                _signal(child, signal.SIGKILL)
            os._exit(EXIT_START)
        get_logger().info("stop requested")
        self.stop.set()

    def _hold_port(self) -> socket.socket:
        """Take the port for all children, without listening: no client ever comes here."""
        host, port = self.settings.host, self.settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not self.settings.shared_port:
                # Whoever listens there alone keeps us from it; with the next option we join.
                held.bind((host, port))
                port = held.getsockname()[1]
                held.close()
                held = socket.socket(family, socket.SOCK_STREAM)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((host, port))
        except OSError as error:
            held.close()
            raise OSError(f"--port {port} on --host {host} cannot be had: {error}") from error
        return held

    def _tell_port(self, port: int) -> None:
        if self.settings.port_file is not None:
            path = Path(self.settings.port_file)
            draft = path.with_suffix(".draft")
            draft.write_text(f"{port}\n", encoding="ascii")
            draft.replace(path)


def run_workers(settings: Settings, argv: Sequence[str]) -> int:
    """Run all processes of a gateway until a signal; return the exit code.

    Args:
        settings: of the gateway.
        argv: the arguments that they came from, without the program's name.
    """
    if settings.die_with_parent:
        die_with_parent()
    instance = settings.instance or new_instance(_SERVICE, SystemClock().entropy)
    telemetry = setup_telemetry(
        service=_SERVICE,
        instance=instance,
        version=pdbus_version(),
        log_level=settings.log_level,
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="pdbus-gateway-") as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            parent = _Parent(settings, argv, instance, Path(folder))
            return runner.run(parent.run())
    finally:
        telemetry.shutdown()


def _signal(child: _Child, number: int) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            child.process.send_signal(number)
