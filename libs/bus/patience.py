"""Subscribing for as long as it takes: a start during an outage must not leave a service deaf."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from libs.bus.api import BusDown, RequestTimeout
from libs.clock.api import Clock
from libs.telemetry import get_logger

__all__ = ["until_up"]

ResultT = TypeVar("ResultT")

_PAUSE_S = 0.1


async def until_up(clock: Clock, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Return what `attempt` returns, trying again while the bus is away.

    There is no limit: the caller is a task whose owner ends it, and readiness tells the reason.
    """
    told = False
    while True:
        try:
            return await attempt()
        except (BusDown, RequestTimeout) as error:
            if not told:
                told = True
                get_logger().warning("waiting for the bus", reason=str(error))
            await clock.sleep(_PAUSE_S)
