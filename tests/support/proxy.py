"""A TCP proxy that breaks connections on purpose: cut, hold (half-open), delay.

It stands between one service and nats-server, so a test can part that service from the bus without
touching either process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["Proxy", "open_proxy"]

_HOST = "127.0.0.1"
_CHUNK = 65_536
_QUEUE = 64
"""Chunks that may be on their way in one direction; more make the sender wait."""


class Proxy:
    """Forwards connections from one port to another.

    Args:
        target: tells the port to connect to; None while it is not known yet.
    """

    def __init__(self, target: Callable[[], int | None]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._delay_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.accepted = 0
        """Connections so far."""

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("the proxy does not listen")
        return self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Begin to listen on a free port."""
        self._server = await asyncio.start_server(self._accept, _HOST, 0)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        self._reset()
        for link in list(self._links):
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    # Faults

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until `heal`."""
        self._refusing = True
        self._reset()

    def flap(self) -> None:
        """Reset all connections; new ones are served at once."""
        self._reset()

    def hold(self) -> None:
        """Let nothing through in either direction, without a word, until `heal`."""
        self._flowing.clear()

    def slow(self, delay_s: float) -> None:
        """Deliver everything that much later, in order, until `heal`."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """Work again; what was held is delivered."""
        self._refusing = False
        self._delay_s = 0.0
        self._flowing.set()

    # Forwarding

    def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self.accepted += 1
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side is gone, or the proxy ends
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._links.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._target()
        if self._refusing or port is None:
            return
        self._writers.add(writer)
        far_reader, far_writer = await asyncio.open_connection(_HOST, port)
        self._writers.add(far_writer)
        try:
            await self._flowing.wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass  # a reset ends both directions
        finally:
            far_writer.transport.abort()
            self._writers.discard(far_writer)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forward one direction; its end ends the connection."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)

        async def deliver() -> None:
            while True:
                due, data = await waiting.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._flowing.wait()
                if not data:
                    raise ConnectionResetError
                try:
                    sink.write(data)
                    await sink.drain()
                except RuntimeError as error:
                    # uvloop's word for a transport that was aborted just now.
                    raise ConnectionResetError from error

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            while True:
                data = await source.read(_CHUNK)
                await waiting.put((loop.time() + self._delay_s, data))
                if not data:
                    return


@asynccontextmanager
async def open_proxy(target: Callable[[], int | None]) -> AsyncIterator[Proxy]:
    """Run a proxy for the length of the context."""
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        with contextlib.suppress(asyncio.TimeoutError):  # a peer that does not let go
            async with asyncio.timeout(2):
                await proxy.close()
