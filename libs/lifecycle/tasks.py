"""Ownership of tasks: nothing runs that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self

from libs.telemetry import count, get_logger, names

__all__ = ["Tasks"]


class Tasks:
    """Owns the tasks of one service. Failures are logged and counted, never lost.

    Unlike `asyncio.TaskGroup`, one failed task does not end its siblings: a fault of one request
    must not end the others. Leaving the context cancels what still runs and waits for it.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.cancel()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(_supervise(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work))
        return task

    def _ended(self, work: Coroutine[Any, Any, Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # A task that is cancelled before its first step has never touched the coroutine.
        work.close()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until all tasks have ended; return whether they did in time."""
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not pending

    async def cancel(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _supervise(work: Coroutine[Any, Any, Any], name: str) -> Any:
    try:
        return await work
    except Exception:  # noqa: BLE001 - one of the two places that may
        # The last net: a fault of one task is told and counted, and its siblings go on.
        count(names.TASK_FAILURES, task=name)
        get_logger().exception("task failed", task=name)
        return None
