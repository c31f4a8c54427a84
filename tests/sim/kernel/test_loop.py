from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.kernel import Deadlock, Domain, SimClock, SimLoop, StepLimit


@pytest.fixture
def loop():
    made = SimLoop(random.Random(1))
    yield made
    made.close()


def test_sleeping_takes_virtual_time_only(loop):
    """A day of sleep passes at once and moves the clock by a day."""

    async def work():
        await asyncio.sleep(86_400)
        return loop.time()

    assert loop.run(work()) == pytest.approx(86_400)


def test_a_timeout_follows_virtual_time(loop):
    """asyncio.timeout ends a wait exactly at its virtual time."""

    async def work():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await loop.create_future()
        return loop.time()

    assert loop.run(work()) == pytest.approx(2.5)


def _order(seed: int, *, shuffle: bool) -> list[int]:
    made = SimLoop(random.Random(seed), shuffle=shuffle)
    order: list[int] = []

    async def work():
        await asyncio.gather(*(one(n) for n in range(8)))

    async def one(number: int):
        await asyncio.sleep(0)
        order.append(number)

    made.run(work())
    made.close()
    return order


def test_the_seed_draws_the_order():
    """Different seeds give different orders, the same seed the same, no shuffle asyncio's."""
    orders = {tuple(_order(seed, shuffle=True)) for seed in range(6)}
    assert len(orders) > 1
    assert _order(3, shuffle=True) == _order(3, shuffle=True)
    assert _order(3, shuffle=False) == list(range(8))


def test_nothing_scheduled_is_a_deadlock(loop):
    """A wait for what can never come is told, not waited for."""

    async def work():
        await loop.create_future()

    with pytest.raises(Deadlock):
        loop.run(work())


def test_spinning_is_told(loop):
    """A task that never lets time pass meets the step limit."""

    async def work():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StepLimit):
        loop.run(work(), limit=1000)


def test_a_killed_process_runs_no_cleanup(loop):
    """After a kill neither the next step nor a finally block of the process runs."""
    domain = Domain("victim")
    seen: list[str] = []

    async def victim():
        try:
            seen.append("began")
            await asyncio.sleep(1.0)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def work():
        loop.spawn(domain, victim())
        await asyncio.sleep(0.5)
        loop.kill(domain)
        await asyncio.sleep(10.0)
        return list(seen)

    assert loop.run(work()) == ["began"]


def test_children_belong_to_their_parents_process(loop):
    """Tasks and timers that a process starts die with it."""
    domain = Domain("victim")
    seen: list[str] = []

    async def child():
        await asyncio.sleep(1.0)
        seen.append("child")

    async def victim():
        asyncio.get_running_loop().call_later(1.0, seen.append, "timer")
        task = asyncio.create_task(child())
        await task

    async def work():
        loop.spawn(domain, victim())
        await asyncio.sleep(0.5)
        tasks = loop.live_tasks(domain)
        loop.kill(domain)
        await asyncio.sleep(5.0)
        return tasks

    assert len(loop.run(work())) == 2
    assert seen == []


def test_a_paused_process_goes_on_later(loop):
    """A pause holds all steps of a process until it is resumed, and loses none."""
    domain = Domain("sleeper")
    at: list[float] = []

    async def sleeper():
        for _ in range(3):
            await asyncio.sleep(1.0)
            at.append(loop.time())

    async def work():
        loop.spawn(domain, sleeper())
        await asyncio.sleep(1.5)
        loop.pause(domain)
        await asyncio.sleep(5.0)
        loop.resume(domain)
        await asyncio.sleep(5.0)

    loop.run(work())
    assert at == pytest.approx([1.0, 6.5, 7.5])


def test_an_unhandled_callback_failure_is_kept(loop):
    """A callback that raises is recorded, and the loop goes on."""

    async def work():
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1.0)

    loop.run(work())
    assert len(loop.failures) == 1
    assert "ZeroDivisionError" in loop.failures[0]


def test_clocks_differ_between_processes(loop):
    """A skewed Unix clock is off by its skew, and monotonic clocks agree on intervals only."""
    one, two = SimClock(loop, 1), SimClock(loop, 2, skew_ms=150.0)

    async def work():
        before = one.monotonic(), two.monotonic()
        await one.sleep(2.0)
        return one.monotonic() - before[0], two.monotonic() - before[1]

    assert loop.run(work()) == pytest.approx((2.0, 2.0))
    assert two.unix_ms() - one.unix_ms() == 150
    assert one.monotonic() != two.monotonic()
    assert one.entropy.getrandbits(64) != two.entropy.getrandbits(64)
