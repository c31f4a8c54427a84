"""What comes due for attempts, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from structlog.testing import capture_logs

from libs.lifecycle import Tasks
from libs.worker.attempt import Attempt
from libs.worker.upkeep import Upkeep
from proto.ids import Incarnation, InstanceId, Nonce, RequestId
from proto.prefill import ReplyTo
from tests.sim.kernel import SimClock, SimLoop

REPLY = ReplyTo(
    gateway=InstanceId("gateway-1"), incarnation=Incarnation("1" * 16), nonce=Nonce("2" * 32)
)


def attempt(number: int) -> Attempt:
    """One attempt of the only request."""
    return Attempt(RequestId("r"), number, REPLY, started_ms=0.0, started_s=0.0)


class World:
    """An upkeep that runs, and when it did what."""

    def __init__(self, loop: SimLoop, tasks: Tasks) -> None:
        self.told: list[tuple[float, str, int]] = []
        self.loop = loop
        self.upkeep = Upkeep(
            clock=SimClock(loop, 1),
            tasks=tasks,
            beat=lambda a: self._note("beat", a.number),
            expire=lambda _rid, number: self._note("expire", number),
            forget=lambda a: self._note("forget", a.number),
        )
        tasks.spawn(self.upkeep.run(), name="upkeep")

    def _note(self, what: str, number: int) -> None:
        if number < 0:
            raise ZeroDivisionError
        self.told.append((round(self.loop.time(), 3), what, number))

    def times(self, what: str, number: int) -> list[float]:
        """Return when something was done for an attempt."""
        return [at for at, done, of in self.told if (done, of) == (what, number)]


def played(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Run a scenario to its end."""
    loop = SimLoop(random.Random(3))
    found: list[World] = []

    async def run() -> None:
        async with Tasks() as tasks:
            found.append(World(loop, tasks))
            await scenario(found[0])

    try:
        loop.run(run())
    finally:
        loop.close()
    return found[0]


def test_each_attempt_beats_once_a_second_while_it_lives() -> None:
    """Whenever it began: the first beat within a second, then one a second, none after its end."""

    async def scenario(world: World) -> None:
        first, second = attempt(1), attempt(2)
        world.upkeep.watch(first)
        await asyncio.sleep(0.7)
        world.upkeep.watch(second)
        await asyncio.sleep(3)
        world.upkeep.release(first)
        await asyncio.sleep(2)

    world = played(scenario)
    assert world.times("beat", 1) == [1.0, 2.0, 3.0]
    assert world.times("beat", 2) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_unused_reservation_ends_at_its_time() -> None:
    """Neither a short one nor a long one waits for a round, and a used one does not end."""

    async def scenario(world: World) -> None:
        await asyncio.sleep(0.1)
        for number, for_s in ((1, 0.25), (2, 2.35), (3, 2.35), (4, 0.0)):
            world.upkeep.hold(RequestId("r"), number, for_s)
        await asyncio.sleep(0.1)
        world.upkeep.watch(attempt(3))
        await asyncio.sleep(5)

    world = played(scenario)
    assert world.times("expire", 1) == [0.35]
    assert world.times("expire", 2) == [2.45]
    assert world.times("expire", 3) == []
    assert world.times("expire", 4) == [0.1]


def test_what_is_over_is_kept_for_ten_seconds() -> None:
    """A late copy finds the attempt for ten seconds, and nothing stays for ever."""

    async def scenario(world: World) -> None:
        for number in (1, 2):
            one = attempt(number)
            world.upkeep.watch(one)
            await asyncio.sleep(0.4)
            world.upkeep.release(one)
            world.upkeep.release(one)
        await asyncio.sleep(15)

    world = played(scenario)
    for number, ended in ((1, 0.4), (2, 0.8)):
        (at,) = world.times("forget", number)
        assert 10 <= at - ended <= 11


def test_a_fault_of_one_attempt_is_told_and_the_others_go_on() -> None:
    """An exception in what is done for one leaves the round whole."""

    async def scenario(world: World) -> None:
        for number in (-1, 1):
            world.upkeep.watch(attempt(number))
        await asyncio.sleep(2.5)

    with capture_logs() as logs:
        world = played(scenario)
    assert world.times("beat", 1) == [1.0, 2.0]
    assert [(line["event"], line["task"]) for line in logs] == [("task failed", "beat")] * 2
