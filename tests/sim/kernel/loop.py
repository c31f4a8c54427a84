"""An event loop on virtual time whose order of callbacks is drawn from a seed.

Callbacks carry the process (`Domain`) they belong to in their context. A dead domain's callbacks
are dropped, so that a crash stops a process between two steps and none of its cleanup code runs;
a paused domain's callbacks wait.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

__all__ = ["OWNER", "Deadlock", "Domain", "SimLoop", "SimTask", "StepLimit", "owned_context"]

ResultT = TypeVar("ResultT")


class Domain:
    """One process, as the loop sees it: alive, paused or dead."""

    __slots__ = ("alive", "held", "name", "paused")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []


OWNER: ContextVar[Domain | None] = ContextVar("sim_owner", default=None)
"""The process that a callback belongs to; None for the world itself."""


class Deadlock(Exception):
    """Nothing is scheduled, and the work is not done."""


class StepLimit(Exception):
    """More callbacks ran than a world of this size can need: something spins."""


def owned_context(domain: Domain | None) -> Context:
    """Return a fresh context whose callbacks belong to `domain`."""
    context = copy_context()
    context.run(OWNER.set, domain)
    return context


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have a reproducible order."""

    number: int
    domain: Domain | None
    context: Context

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is its number."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """The loop. No threads, no sockets, no real time.

    Args:
        rng: the only source of chance.
        shuffle: run the callbacks that are ready together in any order; otherwise in the order
            of asyncio, first in first out.
    """

    _ready: Any
    _stopping: bool

    def __init__(self, rng: random.Random, *, shuffle: bool = True) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._random = rng.random
        self._shuffle = shuffle
        self._numbers = 0
        self._limit = 0
        self._discarded = False
        self.steps = 0
        self.failures: list[str] = []
        self.on_failure: Callable[[str], None] = self.failures.append
        self._tasks: list[SimTask] = []
        self._tasks_mark = 1024
        self.set_task_factory(self._make_task)
        self.set_exception_handler(_note_failure)

    def time(self) -> float:
        """Return virtual seconds since the start of the world."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a numbered future."""
        future: SimFuture = SimFuture.__new__(SimFuture)
        self._numbers += 1
        future.number = self._numbers
        future.__init__(loop=self)
        return future

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback as soon as those that are ready have run."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback so many virtual seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run(self, work: Coroutine[Any, Any, ResultT], *, limit: int = 5_000_000) -> ResultT:
        """Run `work` to its end.

        Raises:
            Deadlock: nothing is scheduled any more.
            StepLimit: more than `limit` callbacks ran.
        """
        self._limit = self.steps + limit
        return self.run_until_complete(work)

    def spawn(
        self, domain: Domain | None, work: Coroutine[Any, Any, Any], name: str = ""
    ) -> asyncio.Task[Any]:
        """Run `work` as a task of `domain`."""
        return self.create_task(work, name=name or None, context=owned_context(domain))

    def kill(self, domain: Domain) -> None:
        """Stop a process between two steps: nothing of it runs again."""
        domain.alive = False
        domain.paused = False
        domain.held.clear()

    def pause(self, domain: Domain) -> None:
        """Hold a process still, as SIGSTOP does."""
        domain.paused = True

    def resume(self, domain: Domain) -> None:
        """Let a paused process go on."""
        domain.paused = False
        self._ready.extend(domain.held)
        domain.held.clear()

    def live_tasks(self, domain: Domain | None = None) -> list[str]:
        """Return the names of the unfinished tasks of one domain, or of the world itself."""
        return [
            task.get_name() for task in self._tasks if not task.done() and task.domain is domain
        ]

    def close(self) -> None:
        """Throw all unfinished work away, without a word from it."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.clear()
        super().close()

    def discard_work(self) -> None:
        """Close the coroutines of all unfinished tasks but the current one; call inside `run`."""
        current = asyncio.current_task()
        closed: set[SimTask] = set()
        # Cleanup code may await or begin more work: there is no time for that any more.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            while fresh := [t for t in self._tasks if not t.done() and t not in closed]:
                for task in fresh:
                    closed.add(task)
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if task is not current:
                        task.context.run(_close, task.get_coro())
        self._ready.clear()
        self._timers.clear()
        self._discarded = True

    def run_in_executor(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse threads."""
        message = "threads are not simulated"
        raise RuntimeError(message)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: SimTask = SimTask.__new__(SimTask)
        self._numbers += 1
        task.number = self._numbers
        task.context = copy_context() if context is None else context
        task.domain = task.context.get(OWNER)
        task.__init__(work, loop=loop, context=task.context)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_mark:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_mark = 1024 + 2 * len(self._tasks)
        return task

    def _run_once(self) -> None:
        for handle in self._batch():
            if handle._cancelled:
                continue
            context = handle._context  # type: ignore[attr-defined]
            domain = context.get(OWNER)
            if domain is not None and (domain.paused or not domain.alive):
                if domain.alive:
                    domain.held.append(handle)
                continue
            self.steps += 1
            try:
                context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's own loop: told, and on
                self.call_exception_handler({"message": f"in {handle!r}", "exception": error})
            if self._discarded:
                self._discarded = False
                return
        if self.steps > self._limit:
            message = f"more than {self._limit} steps, at {self._now:.3f} s"
            raise StepLimit(message)

    def _batch(self) -> list[asyncio.Handle]:
        """Return all that is ready now, in the order in which it is to run."""
        timers = self._timers
        ready = self._ready
        if not ready and not self._stopping:
            self._advance()
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers)[2])
        batch = list(ready)
        ready.clear()
        if self._shuffle and len(batch) > 1:
            draw = self._random
            batch.sort(key=lambda _: draw())
        return batch

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
            heappop(timers)
        if not timers:
            message = f"nothing is scheduled at {self._now:.3f} s"
            raise Deadlock(message)
        self._now = max(self._now, timers[0][0])

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave the heap when their time comes."""

    def _process_events(self, _events: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no threads to wake."""


def _close(work: Any) -> None:
    """Close a coroutine, and one that it was given and has not begun to await."""
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        for value in work.cr_frame.f_locals.values():
            if inspect.iscoroutine(value):
                value.close()
    with suppress(RuntimeError):
        work.close()


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    loop.on_failure(f"{context.get('message')}: {error!r}")
