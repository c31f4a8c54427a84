"""Work for a client that may leave: it ends when the client does, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive

from proto.errors import PdbusError
from services.gateway.edge.exchange import Exchange

__all__ = ["CLIENT_GONE", "SLOW_CLIENT", "ClientGone", "while_present"]

ResultT = TypeVar("ResultT")

CLIENT_GONE = "client_gone"
SLOW_CLIENT = "slow_client"


class ClientGone(Exception):
    """The client no longer waits for an answer; the text says how that was seen."""


async def while_present(
    work: Coroutine[Any, Any, ResultT],
    receive: Receive,
    exchange: Exchange,
    guard: Coroutine[Any, Any, None] | None = None,
) -> ResultT:
    """Return what `work` returns, unless its client disconnects, or `guard` returns first.

    The server does not cancel a handler whose client has left, so `receive` is watched beside the
    work. An answer that is complete is never cut: clients hang up as soon as they have it. `guard`
    watches how fast the client reads.

    Raises:
        ClientGone: the work was cancelled, and has ended.
        PdbusError: raised by the work.
    """
    async with asyncio.TaskGroup() as group:
        job = group.create_task(_outcome(work), name="answer")
        left = group.create_task(_wait_disconnect(receive), name="presence")
        watches = [left]
        if guard is not None:
            watches.append(group.create_task(guard, name="pace"))
        await asyncio.wait((job, *watches), return_when=asyncio.FIRST_COMPLETED)
        gone = left.done()
        if not job.done() and not (gone and exchange.complete):
            exchange.abandoned = CLIENT_GONE if gone else SLOW_CLIENT
            job.cancel()
        await asyncio.wait((job,))
        for watch in watches:
            watch.cancel()
    if job.cancelled():
        raise ClientGone(exchange.abandoned)
    outcome = job.result()
    if isinstance(outcome, _Failed):
        raise outcome.error
    return outcome


@dataclass(frozen=True, slots=True)
class _Failed:
    error: PdbusError


async def _outcome(work: Coroutine[Any, Any, ResultT]) -> ResultT | _Failed:
    """Keep an expected failure from cancelling the group: it is a result."""
    try:
        return await work
    except PdbusError as error:
        return _Failed(error)


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
