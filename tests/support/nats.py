"""A real nats-server, and buses on it, for tests."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from libs.bus import BusSettings, NatsBus, ServiceIdentity, open_bus
from libs.bus.testing import NatsServer, nats_server
from libs.clock import SystemClock
from libs.lifecycle.tasks import Tasks
from proto.ids import InstanceId

__all__ = ["Connect", "connect", "own_nats", "shared_nats"]

Connect = Callable[..., Awaitable[NatsBus]]
"""Opens one more bus: `connect(server, service="router", **settings)`; closed after the test."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_nats() -> Iterator[NatsServer]:
    """One server for all tests that leave it alone."""
    with tempfile.TemporaryDirectory(prefix="pdbus-nats-") as folder:
        server = NatsServer(Path(folder))
        try:
            server.start_blocking()
            yield server
        finally:
            server.stop()


@pytest.fixture
async def own_nats() -> AsyncGenerator[NatsServer]:
    """A server of the test's own, to be killed, paused and restarted."""
    async with nats_server() as server:
        yield server


@pytest.fixture
async def connect() -> AsyncGenerator[Connect]:
    """Open buses that are closed after the test."""
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Tasks())

        async def open_one(server: NatsServer, service: str = "probe", **settings: Any) -> NatsBus:
            identity = ServiceIdentity(service, "0.1.0", InstanceId(f"{service}-{next(_numbers)}"))
            bus = await open_bus(
                BusSettings(urls=(server.url,), **settings), SystemClock(), tasks, identity
            )
            stack.push_async_callback(bus.close, 0.2)
            return bus

        yield open_one
