"""Services that nobody supervises: each is started, killed and started again by the test itself.

Cases about brokers and start orders need that: a supervisor would heal what they want to see.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from libs.bus.testing import NatsServer, free_port
from tests.support.http_client import get
from tests.support.words import NAME

__all__ = ["PAIR", "LooseStack"]

PAIR = ("router-0", "prefill-0", "decode-0", "gateway-0", "cleanup-0")
"""One of each service."""

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.02
_READY_S = 60.0
_END_S = 20.0


class LooseStack:
    """Service processes by name, and the server that they are told to use.

    Args:
        folder: for logs and state.
        server: the bus; the test starts and stops it.
        model: folder of the model.
        env: variables for all processes.
    """

    def __init__(
        self, folder: Path, server: NatsServer, model: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._folder = folder
        self._model = model
        self._env = dict(env or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self._starts: dict[str, int] = {}

    # What cases ask of processes

    @property
    def port(self) -> int:
        """Port of the first gateway."""
        return self.gateway_port("gateway-0")

    @property
    def nats_url(self) -> str:
        """Address of the bus."""
        return self.server.url

    @property
    def names(self) -> list[str]:
        """The processes that run."""
        return [name for name, process in self._running.items() if process.poll() is None]

    def pid(self, name: str) -> int:
        """Return the process id of one living process."""
        process = self._running[name]
        assert process.poll() is None, f"{name} ended with {process.returncode}: {self.log(name)}"
        return process.pid

    def health_port(self, name: str) -> int:
        """Return where it answers /readyz and /metrics."""
        path = self._port_file(name)
        deadline = time.monotonic() + _READY_S
        while not path.exists():
            self.pid(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(_POLL_S)
        return int(path.read_text())

    def instance(self, name: str) -> str:
        """Return its name on the bus."""
        return name

    def log(self, name: str) -> str:
        """Return what it has logged, over all its lives."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8")

    def gateway_port(self, name: str) -> int:
        """Return the port of a gateway; it stays the same over restarts."""
        if name not in self._ports:
            self._ports[name] = free_port()
        return self._ports[name]

    # Life

    def start(
        self,
        name: str,
        *arguments: str,
        nats: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a process, and do not wait for it; `arguments` are more options of the service."""
        role = name.rpartition("-")[0]
        self._starts[name] = self._starts.get(name, 0) + 1
        options = [
            *("--nats", nats or self.server.url, "--instance", name, "--health-port", "0"),
            *("--port-file", str(self._port_file(name)), "--state-dir", str(self._folder)),
            "--die-with-parent",
        ]
        if role not in {"router", "cleanup"}:
            options += ["--model", NAME, "--model-path", str(self._model)]
        if role == "gateway":
            options += ["--port", str(self.gateway_port(name))]
        if role in {"prefill", "decode"}:
            options += ["--engine", "scripted"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", f"services.{role}", *options, *arguments],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env, **(env or {})},
            )

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        os.kill(self.pid(name), number)

    def kill(self, name: str) -> None:
        """End a process as a crash does."""
        self.signal(name, signal.SIGKILL)
        self._running[name].wait(_END_S)

    def ended(self, name: str) -> int | None:
        """Return the exit code of a process that has ended."""
        return self._running[name].poll()

    async def end(self, name: str, within_s: float = _END_S) -> int:
        """Wait until a process has ended; return its exit code."""
        async with asyncio.timeout(within_s):
            while (code := self.ended(name)) is None:
                await asyncio.sleep(_POLL_S)
        return code

    async def ready(self, *names: str, within_s: float = _READY_S) -> float:
        """Wait until processes are ready; return how long that took."""
        began = time.monotonic()
        for name in names or self.names:
            try:
                async with asyncio.timeout(within_s - (time.monotonic() - began)):
                    while await self.why_not(name):
                        await asyncio.sleep(_POLL_S)
            except TimeoutError:
                why = await self.why_not(name)
                raise AssertionError(f"{name}: {why}\n{self.log(name)[-3000:]}") from None
        return time.monotonic() - began

    async def why_not(self, name: str) -> str:
        """Return why a process is not ready; empty if it is."""
        self.pid(name)
        with suppress(OSError, TimeoutError):  # it does not listen yet, or not any more
            if self._port_file(name).exists():
                reply = await get(int(self._port_file(name).read_text()), "/readyz", timeout_s=2)
                return "" if reply.status == 200 else reply.body.decode()
        return "nothing listens"

    def stop(self) -> None:
        """End all processes in order; whatever is left is killed, and a failure."""
        order = ("gateway", "router", "prefill", "decode", "cleanup")
        late: list[str] = []
        for role in order:
            mine = [name for name in self.names if name.startswith(role)]
            late += self._stop(mine)
        assert late == [], late

    def _stop(self, names: Iterable[str]) -> list[str]:
        late: list[str] = []
        for name in names:
            self._running[name].send_signal(signal.SIGCONT)
            self._running[name].terminate()
        for name in names:
            process = self._running[name]
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                late.append(f"{name}\n{self.log(name)[-2000:]}")
                process.kill()
                process.wait()
        return late

    def _port_file(self, name: str) -> Path:
        # One a life: an old one would tell the port of a dead process.
        return self._folder / f"{name}.{self._starts.get(name, 0)}.port"
