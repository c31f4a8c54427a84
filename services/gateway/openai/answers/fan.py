"""One or more calls at a time, whose answers come as one stream of deltas with an index."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from proto.errors import ErrorCode, PdbusError
from services.gateway.api import Call, Calls, Delta, Live

__all__ = ["Lives", "open_all"]

_SIBLING_FAILED = "another choice of the request failed"


class Lives(Protocol):
    """Calls that have been opened."""

    @property
    def first(self) -> Live:
        """The call of the first choice."""
        ...

    @property
    def pending(self) -> bool:
        """Whether `deltas` would yield, end or raise without waiting."""
        ...

    def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield what comes of any choice, with its index; ends when all have finished.

        Raises:
            PdbusError: a choice failed.
        """
        ...


@asynccontextmanager
async def open_all(
    calls: Calls, asked: Sequence[Call], *, at_once: int, why: Callable[[], str]
) -> AsyncGenerator[Lives]:
    """Open calls; what has not come to its end when the block is left is given up.

    Args:
        at_once: so many run at a time; the next is opened when one has ended.
        why: asked for the reason when calls are given up.

    Raises:
        PdbusError: the first call was refused, or any failed before the first was opened.
    """
    if len(asked) == 1:
        async with _one(calls, asked[0], why) as lives:
            yield lives
        return
    many = _Many(calls, asked, at_once)
    async with many.running(why):
        yield many


@asynccontextmanager
async def _one(calls: Calls, call: Call, why: Callable[[], str]) -> AsyncGenerator[_One]:
    live = await calls.open(call)
    ended = False
    try:
        yield _One(live)
        ended = True
    finally:
        if not ended:
            await live.cancel(why())


class _One:
    """A single call."""

    def __init__(self, live: Live) -> None:
        self.first = live

    @property
    def pending(self) -> bool:
        return self.first.pending

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        async with aclosing(self.first.deltas()) as deltas:
            async for delta in deltas:
                yield 0, delta


class _Many:
    """Several calls, each followed by a task of its own."""

    def __init__(self, calls: Calls, asked: Sequence[Call], at_once: int) -> None:
        self._calls = calls
        self._asked = asked
        self._places = asyncio.Semaphore(at_once)
        self._first: Live | None = None
        self._running: dict[int, Live] = {}
        self._left = len(asked)
        self._queue: deque[tuple[int, Delta]] = deque()
        self._failure: PdbusError | None = None
        self._changed = asyncio.Event()
        self._one_ended = asyncio.Event()

    @property
    def first(self) -> Live:
        if self._first is None:
            raise PdbusError(ErrorCode.INTERNAL, "the first choice is not open")
        return self._first

    @property
    def pending(self) -> bool:
        return bool(self._queue) or self._failure is not None or not self._left

    @asynccontextmanager
    async def running(self, why: Callable[[], str]) -> AsyncGenerator[None]:
        failure: PdbusError | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._follow(index, call), name="choice")
                for index, call in enumerate(self._asked)
            ]
            try:
                await self._first_opened()
                yield
            except PdbusError as error:
                # A group would wrap it.
                failure = error
            finally:
                for task in tasks:
                    task.cancel()
                await self._give_up(why() if self._failure is None else _SIBLING_FAILED)
        if failure is not None:
            raise failure

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._failure is not None:
                raise self._failure
            if not self._left:
                return
            await self._change()

    async def _first_opened(self) -> None:
        while self._first is None:
            if self._failure is not None:
                raise self._failure
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _give_up(self, reason: str) -> None:
        for live in tuple(self._running.values()):
            await live.cancel(reason)

    async def _follow(self, index: int, call: Call) -> None:
        try:
            async with self._places:
                await self._run(index, call)
        except PdbusError as error:
            self._failure = self._failure or error
        finally:
            self._changed.set()

    async def _run(self, index: int, call: Call) -> None:
        live = await self._open(call)
        self._running[index] = live
        if index == 0:
            self._first = live
        self._changed.set()
        async with aclosing(live.deltas()) as deltas:
            async for delta in deltas:
                self._queue.append((index, delta))
                self._changed.set()
        del self._running[index]
        self._left -= 1
        self._one_ended.set()

    async def _open(self, call: Call) -> Live:
        """Open a call; where all slots are taken, one of ours may be freed."""
        while True:
            try:
                return await self._calls.open(call)
            except PdbusError as refusal:
                if refusal.code is not ErrorCode.SATURATED or not self._running:
                    raise
            self._one_ended.clear()
            await self._one_ended.wait()
