"""Ownership of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from libs.lifecycle import Tasks


async def test_leaving_the_context_cancels_what_runs():
    """No task outlives its owner, and each has ended when the block is left."""
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Tasks() as tasks:
        tasks.spawn(work(), name="work")
        await asyncio.sleep(0)
    assert ended.is_set()
    assert len(tasks) == 0


async def test_a_failed_task_is_counted_and_its_siblings_go_on(metric: Callable[..., float]):
    """A fault ends one task, is told, and touches no other."""
    before = metric("pdbus.task_failures", task="faulty")

    async def faulty() -> None:
        raise RuntimeError("broken")

    async def fine() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with Tasks() as tasks:
        tasks.spawn(faulty(), name="faulty")
        sibling = tasks.spawn(fine(), name="fine")
        assert await sibling == "done"
    assert metric("pdbus.task_failures", task="faulty") - before == 1


async def test_settle_says_whether_all_ended_in_time():
    """Settling waits for running tasks, within its limit, and cancels nothing."""
    release = asyncio.Event()
    async with Tasks() as tasks:
        assert await tasks.settle(0.01)
        task = tasks.spawn(release.wait(), name="wait")
        assert not await tasks.settle(0.01)
        assert not task.done()
        release.set()
        assert await tasks.settle(1.0)


async def test_a_task_may_cancel_its_own_group():
    """A task that ends the others is not waited for by itself."""

    async def work(tasks: Tasks) -> str:
        await tasks.cancel()
        return "alive"

    async with Tasks() as tasks:
        other = tasks.spawn(asyncio.Event().wait(), name="other")
        assert await tasks.spawn(work(tasks), name="ender") == "alive"
        assert other.cancelled()


async def test_cancellation_of_the_owner_reaches_its_tasks():
    """Cancelling the task that owns the context ends the owned tasks too."""
    started = asyncio.Event()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def own() -> None:
        async with Tasks() as tasks:
            tasks.spawn(work(), name="work")
            await asyncio.Event().wait()

    owner = asyncio.get_running_loop().create_task(own())
    await started.wait()
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert ended.is_set()
