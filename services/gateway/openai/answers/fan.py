"""One or more calls at a time, whose answers come as one stream of deltas with an index."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import msgspec

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.ids import new_request_id
from services.gateway.api import Call, Calls, Delta, Live, Part, delta_of

__all__ = ["Lives", "open_all"]

Offer = Callable[[int, Part], bool]
"""Takes a delta of a choice where it arrives, or says that it cannot now."""

_PAUSE_S = 0.25
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

    def deltas(self, offer: Offer) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield what comes of any choice, with its index; ends when all have finished.

        Args:
            offer: called with what comes while nothing waits to be yielded; what it takes is not
                yielded.

        Raises:
            PdbusError: a choice failed.
        """
        ...


def open_all(
    calls: Calls, asked: Sequence[Call], *, at_once: int, clock: Clock, why: Callable[[], str]
) -> AbstractAsyncContextManager[Lives]:
    """Open calls for a block; what has not come to its end when it is left is given up.

    Args:
        at_once: so many run at a time; the next is opened when one has ended.
        why: asked for the reason when calls are given up.

    Raises:
        PdbusError: the first call was refused, or any failed before the first was opened.
    """
    if len(asked) == 1:
        return _One(calls, asked[0], why)
    return _Many(calls, asked, at_once, clock).running(why)


class _One:
    """A single call; nearly all requests are one, so that it has no layers."""

    def __init__(self, calls: Calls, call: Call, why: Callable[[], str]) -> None:
        self._calls = calls
        self._call = call
        self._why = why
        self._live: Live | None = None

    async def __aenter__(self) -> Self:
        self._live = await self._calls.open(self._call)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self.first.cancel(self._why())

    @property
    def first(self) -> Live:
        if self._live is None:
            raise PdbusError(ErrorCode.INTERNAL, "the call is not open")
        return self._live

    @property
    def pending(self) -> bool:
        return self.first.pending

    async def deltas(self, offer: Offer) -> AsyncGenerator[tuple[int, Delta], None]:
        async with aclosing(self.first.deltas(partial(offer, 0))) as deltas:
            async for delta in deltas:
                yield 0, delta


class _Many:
    """Several calls, each followed by a task of its own."""

    def __init__(self, calls: Calls, asked: Sequence[Call], at_once: int, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._asked = asked
        self._places = asyncio.Semaphore(at_once)
        self._first: Live | None = None
        self._running: dict[int, Live] = {}
        self._begun = False
        """Whether any choice has found a place."""
        self._active = 0
        """Choices that look for a place now."""
        self._left = len(asked)
        self._queue: deque[tuple[int, Delta]] = deque()
        self._failure: PdbusError | None = None
        self._offer: Offer | None = None
        """Set while whoever iterates waits."""
        self._changed = asyncio.Event()
        self._freed = asyncio.Event()

    @property
    def first(self) -> Live:
        if self._first is None:
            raise PdbusError(ErrorCode.INTERNAL, "the first choice is not open")
        return self._first

    @property
    def pending(self) -> bool:
        return bool(self._queue) or self._failure is not None or not self._left

    @asynccontextmanager
    async def running(self, why: Callable[[], str]) -> AsyncGenerator[Lives]:
        failure: PdbusError | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._follow(index, call), name="choice")
                for index, call in enumerate(self._asked)
            ]
            try:
                await self._first_opened()
                yield self
            except PdbusError as error:
                # A group would wrap it.
                failure = error
            finally:
                for task in tasks:
                    task.cancel()
                await self._give_up(why() if self._failure is None else _SIBLING_FAILED)
        if failure is not None:
            raise failure

    async def deltas(self, offer: Offer) -> AsyncGenerator[tuple[int, Delta], None]:
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._failure is not None:
                raise self._failure
            if not self._left:
                return
            self._offer = offer
            try:
                await self._change()
            finally:
                self._offer = None

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
        self._begun = True
        if index == 0:
            self._first = live
        self._changed.set()
        async with aclosing(live.deltas(partial(self._take, index))) as deltas:
            async for delta in deltas:
                self._take(index, delta)
        del self._running[index]
        self._left -= 1
        self._freed.set()

    def _take(self, index: int, part: Part) -> bool:
        """Pass some tokens on, or queue them behind what waits."""
        if self._queue or self._offer is None or not self._offer(index, part):
            self._queue.append((index, delta_of(part)))
            self._changed.set()
        return True

    async def _open(self, call: Call) -> Live:
        """Open a call; where all slots are taken, wait for one of ours, or try again."""
        turn = 0
        while True:
            self._active += 1
            try:
                return await self._calls.open(self._again(call, turn) if turn else call)
            except PdbusError as refusal:
                late = self._clock.unix_ms() >= call.deadline_ms
                alone = not self._begun and self._active == 1
                if refusal.code is not ErrorCode.SATURATED or late or alone:
                    raise
            finally:
                self._active -= 1
            turn += 1
            await self._wait_for_slot()

    def _again(self, call: Call, turn: int) -> Call:
        """Return a call for another try: what was refused stands in the ledger as failed."""
        rid = new_request_id(self._clock.unix_ms(), self._clock.entropy)
        return msgspec.structs.replace(call, rid=rid, key=call.key and f"{call.key} /{turn}")

    async def _wait_for_slot(self) -> None:
        if not self._running:
            # Others have them all: what has begun goes on when they leave some.
            await self._clock.sleep(_PAUSE_S)
            return
        self._freed.clear()
        await self._freed.wait()
