"""The outputs of one job, from whoever makes them to whoever iterates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from proto.host import JobFailed, JobFinished, JobOutput, JobTokens

__all__ = ["OutputStream", "Shaper"]


class Shaper(Protocol):
    """Changes the outputs of one job on their way."""

    def shape(self, output: JobOutput) -> JobOutput:
        """Return the output as it is to be given."""
        ...


class OutputStream:
    """An unbounded queue that ends after the first final output, or with an error.

    Implements `libs.engine.api.Outputs`. Bounded in practice by the job's `max_tokens`. One
    consumer; use it on one loop only.

    Args:
        shaper: what changes each output before it is queued.
    """

    def __init__(self, shaper: Shaper | None = None) -> None:
        self._shaper = shaper
        self._items: deque[JobOutput] = deque()
        self._take: Callable[[JobTokens], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._ended = False

    def push(self, output: JobOutput) -> None:
        """Add an output; outputs after the final one are dropped."""
        if self._ended or self._error is not None:
            return
        if self._shaper is not None:
            output = self._shaper.shape(output)
        if self._take is not None and not self._items and isinstance(output, JobTokens):
            self._take(output)
            return
        self._items.append(output)
        self._notify()

    def hand_on(self, take: Callable[[JobTokens], None]) -> None:
        """Hand tokens to `take` where they are pushed, once none wait to be read."""
        self._take = take

    def fail(self, error: Exception) -> None:
        """End the stream with `error`, after what is queued."""
        if self._error is None:
            self._error = error
            self._notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobOutput:
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            if self._error is not None:
                self._ended = True
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output = self._items.popleft()
        if isinstance(output, JobFinished | JobFailed):
            self._ended = True
            self._items.clear()
        return output

    async def aclose(self) -> None:
        """Stop to collect outputs; the job goes on."""
        self._ended = True
        self._items.clear()

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
