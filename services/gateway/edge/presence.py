"""Work for a client that may leave: it ends when the client does, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive

from services.gateway.edge.connection import Presence
from services.gateway.edge.exchange import Exchange

__all__ = ["CLIENT_GONE", "SLOW_CLIENT", "ClientGone", "Pace", "while_present"]

ResultT = TypeVar("ResultT")

CLIENT_GONE = "client_gone"
SLOW_CLIENT = "slow_client"


class ClientGone(Exception):
    """The client no longer waits for an answer; the text says how that was seen."""


class Pace(msgspec.Struct, frozen=True):
    """Watches how fast a client reads."""

    after_s: float
    """When there is something to watch at the earliest: most answers have ended by then."""
    watch: Callable[[], Coroutine[Any, Any, None]]
    """Returns when the client is too slow."""


def while_present(
    work: Coroutine[Any, Any, ResultT],
    receive: Receive,
    exchange: Exchange,
    pace: Pace | None = None,
) -> Coroutine[Any, Any, ResultT]:
    """Return what `work` returns, unless its client disconnects, or is too slow for `pace`.

    The server does not cancel a handler whose client has left, so the task that runs it is
    cancelled here: where the connection itself tells of its end, no task need wait for that beside
    the work. An answer that is complete is never cut: clients hang up as soon as they have it.

    Raises:
        ClientGone: the work was cancelled, and has ended.
        PdbusError: raised by the work.
    """
    if exchange.presence is not None:
        return _held(work, exchange, exchange.presence, pace)
    return _watched(work, receive, exchange, pace)


async def _watched(
    work: Coroutine[Any, Any, ResultT], receive: Receive, exchange: Exchange, pace: Pace | None
) -> ResultT:
    """Work under a server that is not ours, which tells only who asks."""
    presence = Presence()
    asking = asyncio.ensure_future(_wait_disconnect(receive, presence))
    try:
        return await _held(work, exchange, presence, pace)
    finally:
        asking.cancel()
        await asyncio.wait((asking,))


async def _held(
    work: Coroutine[Any, Any, ResultT], exchange: Exchange, presence: Presence, pace: Pace | None
) -> ResultT:
    if presence.gone and not exchange.complete:
        work.close()
        exchange.abandoned = CLIENT_GONE
        raise ClientGone(CLIENT_GONE)
    leash = _Leash(exchange, pace)
    presence.watch(leash.left)
    try:
        return await work
    except asyncio.CancelledError as error:
        if leash.let_go():
            raise ClientGone(exchange.abandoned) from error
        raise
    finally:
        presence.watch(None)
        leash.let_go()
        if leash.pacer is not None:
            await _end(leash.pacer)


class _Leash:
    """Cancels the task that works for a client, at most once, and knows that it was this one."""

    def __init__(self, exchange: Exchange, pace: Pace | None) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("this runs in a task")
        self.pacer: asyncio.Task[None] | None = None
        self._task = task
        self._before = task.cancelling()
        self._exchange = exchange
        self._pulled = False
        self._pace = pace
        self._timer: asyncio.TimerHandle | None = None
        if pace is not None:
            self._timer = task.get_loop().call_later(pace.after_s, self._watch_pace)

    def left(self) -> None:
        """End the work, as its client has left."""
        if not self._exchange.complete:
            self._pull(CLIENT_GONE)

    def let_go(self) -> bool:
        """Stop watching; return whether a cancellation of the task was ours alone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pulled:
            return False
        self._pulled = False
        return self._task.uncancel() <= self._before

    def _pull(self, why: str) -> None:
        if not self._exchange.abandoned:
            self._exchange.abandoned = why
            self._pulled = True
            self._task.cancel()

    def _watch_pace(self) -> None:
        self._timer = None
        if self._pace is not None:
            self.pacer = self._task.get_loop().create_task(self._pace.watch(), name="pace")
            self.pacer.add_done_callback(self._too_slow)

    def _too_slow(self, pacer: asyncio.Task[None]) -> None:
        if not pacer.cancelled():
            self._pull(SLOW_CLIENT)


async def _end(pacer: asyncio.Task[None]) -> None:
    pacer.cancel()
    await asyncio.wait((pacer,))
    if not pacer.cancelled():
        pacer.result()


async def _wait_disconnect(receive: Receive, presence: Presence) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    presence.leave()
