"""The outputs of one job, from whoever makes them to whoever iterates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from libs.engine.api import EngineDead, Plain
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
        self.direct: Callable[[JobTokens], None] | None = None
        """What `push` would do with tokens, where it is as short as this."""
        self.plain: Plain | None = None
        """The same for those without details, where somebody takes them so."""
        self._shaper = shaper
        self._items: deque[JobOutput] = deque()
        self._take: Callable[[JobTokens], None] | None = None
        self._last: Callable[[JobFinished | JobFailed], None] | None = None
        self._fail: Callable[[EngineDead], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineDead | None = None
        self._ended = False

    def push(self, output: JobOutput) -> None:
        """Add an output; outputs after the final one are dropped."""
        if self._ended or self._error is not None:
            return
        if self._shaper is not None:
            output = self._shaper.shape(output)
        self._give(output)

    def deliver(
        self,
        take: Callable[[JobTokens], None],
        last: Callable[[JobFinished | JobFailed], None],
        fail: Callable[[EngineDead], None] | None = None,
        plain: Plain | None = None,
    ) -> None:
        """Hand on all outputs, and the error, instead of yielding any; first those that wait."""
        self._take, self._last, self._fail = take, last, fail
        items, self._items = self._items, deque()
        for output in items:
            self._give(output)
        if self._shaper is None and self._error is None and not self._ended:
            self.direct, self.plain = take, plain
        self._tell_error()

    def fail(self, error: EngineDead) -> None:
        """End the stream with `error`, after what is queued."""
        if self._error is None:
            self._error, self.direct, self.plain = error, None, None
            self._notify()
            self._tell_error()

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
            self._stop()
        return output

    async def aclose(self) -> None:
        """Stop to collect outputs; the job goes on."""
        self._stop()

    def _give(self, output: JobOutput) -> None:
        if self._take is None or self._last is None:
            self._items.append(output)
            self._notify()
        elif isinstance(output, JobTokens):
            self._take(output)
        elif not self._ended:
            self._stop()
            self._last(output)

    def _tell_error(self) -> None:
        if self._error is not None and self._fail is not None and not self._ended:
            self._stop()
            self._fail(self._error)

    def _stop(self) -> None:
        self._ended, self.direct, self.plain = True, None, None
        self._items.clear()

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
