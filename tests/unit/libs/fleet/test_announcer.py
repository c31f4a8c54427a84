"""When heartbeats leave, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from libs.fleet import Announcer
from libs.fleet.announcer import Presence
from proto.ids import Incarnation, InstanceId
from proto.workers import Role, WorkerRef, WorkerState
from tests.sim.kernel import SimClock, SimLoop

ME = WorkerRef(role=Role.DECODE, instance=InstanceId("d"), incarnation=Incarnation("i"))


class Heard:
    """A bus that keeps when something was said."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.at_s: list[float] = []

    async def publish(self, _subject: str, _message: object) -> None:
        """Keep the time."""
        self.at_s.append(self._loop.time())


Act = Callable[[Announcer], Awaitable[None]]


def announced(act: Act, until_s: float) -> list[float]:
    """Return when heartbeats left while something was done."""
    loop = SimLoop(random.Random(1))
    heard = Heard(loop)

    async def work() -> None:
        announcer = Announcer(
            bus=heard,
            clock=SimClock(loop, 1),
            describe=lambda: Presence(ref=ME, state=WorkerState.READY),
        )
        running = asyncio.ensure_future(announcer.run())
        await asyncio.sleep(0.1)
        await act(announcer)
        await asyncio.sleep(until_s - loop.time())
        running.cancel()
        await asyncio.wait([running])

    loop.run(work())
    loop.close()
    return heard.at_s


async def nothing(_announcer: Announcer) -> None:
    """Do nothing."""


async def hurry(announcer: Announcer) -> None:
    """Say that others wait."""
    announcer.hurry()


async def note_often(announcer: Announcer) -> None:
    """Change without a pause."""
    for _ in range(90):
        announcer.note()
        await asyncio.sleep(0.01)


async def note_and_hurry(announcer: Announcer) -> None:
    """Change, and then have others wait."""
    announcer.note()
    await asyncio.sleep(0.02)
    announcer.hurry()


def test_a_heartbeat_leaves_once_a_second():
    """Where nothing changes."""
    assert announced(nothing, 3.5) == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_what_others_wait_for_leaves_at_once():
    """And the next second begins with it."""
    assert announced(hurry, 1.5) == pytest.approx([0.0, 0.1, 1.1])


def test_what_nobody_waits_for_leaves_five_times_a_second_at_most():
    """However often it changes, it is told within 0.2 s."""
    assert announced(note_often, 1.1) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], abs=0.02)


def test_a_hurry_takes_along_what_was_noted():
    """Nothing is told twice."""
    assert announced(note_and_hurry, 1.0) == pytest.approx([0.0, 0.12])
