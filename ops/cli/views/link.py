"""Short visits to the bus, as a program that offers no service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from libs.bus import BusError, BusSettings, NatsBus, open_bus
from libs.clock import SystemClock
from libs.lifecycle import Tasks
from ops.cli.errors import CommandError
from ops.cli.views.workers import listen
from proto.events import Event
from proto.ids import RequestId
from proto.workers import Heartbeat

__all__ = ["fleet_of", "read_events", "visit"]

CONNECT_S = 3.0
READ_S = 5.0


@asynccontextmanager
async def visit(url: str) -> AsyncGenerator[NatsBus]:
    """Be connected for the length of the context.

    Raises:
        CommandError: the bus cannot be reached, or a request on it fails.
    """
    settings = BusSettings(urls=(url,), name="pdbus-cli", startup_deadline_s=CONNECT_S)
    try:
        async with Tasks() as tasks:
            bus = await open_bus(settings, SystemClock(), tasks)
            try:
                yield bus
            finally:
                await bus.close()
    except BusError as error:
        raise CommandError(str(error)) from error


async def fleet_of(url: str) -> list[Heartbeat]:
    """Return what every process on the bus says of itself."""
    async with visit(url) as bus:
        return await listen(bus)


def read_events(url: str) -> Callable[[RequestId], Awaitable[list[Event]]]:
    """Return what reads the stored events of a request."""

    async def read(rid: RequestId) -> list[Event]:
        async with visit(url) as bus:
            return await bus.read_events(rid, timeout_s=READ_S)

    return read
