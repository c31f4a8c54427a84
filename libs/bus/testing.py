"""A real nats-server for tests: on a port of its own, and ready to be killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from libs.bus.server import ServerOptions, find_server, server_config

__all__ = ["NatsServer", "nats_server"]

# Below the range from which Linux takes the ports of outgoing connections: a client that tries to
# come back to a port of that range, while its server is away, can connect to itself and keep it.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000
_START_S = 10.0
_POLL_S = 0.01


class NatsServer:
    """One server process, restartable on its port with its files.

    Args:
        folder: for its configuration, log and JetStream files.
        jetstream: whether it has JetStream.
        max_payload: as in the server's configuration.
        extra: more lines of configuration.
    """

    def __init__(
        self, folder: Path, *, jetstream: bool = True, max_payload: str = "4MB", extra: str = ""
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self._jetstream = jetstream
        self._max_payload = max_payload
        self.extra = extra
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server wrote."""
        return (self.folder / "nats.log").read_text()

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        config = self._configure()
        with (self.folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_server()), "-c", str(config)], stdout=log, stderr=log
            )

    async def start(self) -> None:
        """Start the process, and wait until it greets."""
        self.launch()
        deadline = time.monotonic() + _START_S
        while not self.greets():
            self._check_alive(deadline)
            await asyncio.sleep(_POLL_S)

    def start_blocking(self) -> None:
        """As `start`, for callers without a loop."""
        self.launch()
        deadline = time.monotonic() + _START_S
        while not self.greets():
            self._check_alive(deadline)
            time.sleep(_POLL_S)

    def greets(self) -> bool:
        """Return whether the server accepts connections and says its greeting."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self._signal(signal.SIGKILL)
        self._wait()

    def terminate(self) -> None:
        """End the process in order."""
        self._signal(signal.SIGTERM)
        self._wait()

    def pause(self) -> None:
        """Let the process hang; its port still accepts connections."""
        self._signal(signal.SIGSTOP)
        # The signal works with a delay; this returns when the process really stands still.
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let a hanging process go on."""
        self._signal(signal.SIGCONT)

    def lame_duck(self) -> None:
        """Let the process tell its clients to leave, and then end."""
        self._signal(signal.SIGUSR2)

    def reload(self) -> None:
        """Read the configuration again, with `extra` as it is now."""
        self._configure()
        self._signal(signal.SIGHUP)

    def stop(self) -> None:
        """Leave no process behind, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGCONT)
            self.kill()

    def _configure(self) -> Path:
        options = ServerOptions(
            port=self.port,
            store_dir=str(self.folder / "jetstream") if self._jetstream else None,
            max_payload=self._max_payload,
            extra=self.extra,
        )
        config = self.folder / "nats.conf"
        config.write_text(server_config(options))
        return config

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=_START_S)
            self._process = None

    def _check_alive(self, deadline: float) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"nats-server did not start:\n{self.log}")
        if time.monotonic() > deadline:
            self.stop()
            raise RuntimeError(f"nats-server is not ready:\n{self.log}")


@asynccontextmanager
async def nats_server(
    *, jetstream: bool = True, max_payload: str = "4MB", extra: str = ""
) -> AsyncGenerator[NatsServer]:
    """Run a server for the time of a block."""
    with tempfile.TemporaryDirectory(prefix="pdbus-nats-") as folder:
        server = NatsServer(Path(folder), jetstream=jetstream, max_payload=max_payload, extra=extra)
        try:
            await server.start()
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(_FIRST_PORT, _LAST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
