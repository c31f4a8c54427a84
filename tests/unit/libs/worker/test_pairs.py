"""A decode worker goes the way to each prefill engine once, and again where it could not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from libs.bus.api import Bus
from libs.engine import Engine
from libs.lifecycle.tasks import Tasks
from libs.worker.pairs import PairWatch
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane, PeerAddress
from proto.pairs import LanePolicy, PairProbe, PairsRequest, PairState, SizeProbe
from proto.workers import CompatCard, Heartbeat, Role, WorkerState
from tests.support.records import card_of

CARD = card_of()
GOOD = PairProbe(lane=Lane.SYSV, sizes=(SizeProbe(size_bytes=1024, seconds=5e-5, lane=Lane.SYSV),))
BAD = PairProbe(code=ErrorCode.PREFILL_LOST, detail="no answer")


class Time:
    """A clock whose sleeps end at once, and move it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Probes:
    """An engine that answers probes from a list; the last answer stays."""

    def __init__(self, *answers: PairProbe) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def probe(self, source: PeerAddress) -> PairProbe:
        self.asked.append(source.incarnation)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Bench:
    """A watch with its surroundings."""

    def __init__(self, tasks: Tasks, policy: str) -> None:
        self.time = Time()
        self.news = 0
        self.watch = PairWatch(
            bus=cast("Bus", self),
            clock=cast("Any", self.time),
            tasks=tasks,
            policy=LanePolicy.parse(policy),
            changed=self._note,
        )
        self._hear: Callable[[str, Heartbeat], None] | None = None

    async def subscribe(self, _subject: str, _kind: type, hear: Any) -> Any:
        self._hear = hear
        return self

    async def close(self) -> None:
        self._hear = None

    async def use(self, *answers: PairProbe) -> Probes:
        """Start with an engine that finds this."""
        await self.watch.start()
        engine = Probes(*answers)
        self.watch.use(cast("Engine", engine), CARD)
        return engine

    def speak(self, n: int, life: str = "a", **changes: Any) -> None:
        """Let a prefill worker send a heartbeat."""
        incarnation = Incarnation(f"{life}{n}".ljust(16, "0"))
        facts = {
            "role": Role.PREFILL,
            "instance": InstanceId(f"prefill-{n}"),
            "incarnation": incarnation,
            "version": "1",
            "sequence": 1,
            "sent_ms": 0,
            "state": WorkerState.READY,
            "card": CARD,
            "address": PeerAddress(incarnation=incarnation, host="h"),
        }
        assert self._hear is not None
        self._hear("", Heartbeat(**(facts | changes)))

    def states(self) -> dict[str, PairState]:
        return {report.instance: report.state for report in self.watch.reports()}

    def _note(self) -> None:
        self.news += 1


@pytest.fixture
async def bench() -> AsyncIterator[Callable[[str], Bench]]:
    """Make a watch for a policy; its tasks end with the test."""
    async with Tasks() as tasks:
        yield lambda policy: Bench(tasks, policy)


async def settle(rounds: int = 30) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_each_engine_is_probed_once(bench: Callable[[str], Bench]) -> None:
    """Heartbeats go on; the way is gone once, and what was found is news once."""
    rig = bench("allow")
    engine = await rig.use(GOOD)
    for _ in range(3):
        rig.speak(0)
        rig.speak(1)
        await settle()
    assert sorted(engine.asked) == ["a0".ljust(16, "0"), "a1".ljust(16, "0")]
    assert rig.states() == {"prefill-0": PairState.UP, "prefill-1": PairState.UP}
    assert rig.news == 2
    assert all(report.sizes == () for report in rig.watch.reports())


async def test_a_way_that_fails_is_tried_until_it_works(bench: Callable[[str], Bench]) -> None:
    """Nobody has to restart anything once the network is back."""
    rig = bench("allow")
    engine = await rig.use(BAD, BAD, GOOD)
    rig.speak(0)
    await settle()
    assert len(engine.asked) == 3
    assert rig.states() == {"prefill-0": PairState.UP}


async def test_a_refusal_is_not_tried_again(bench: Callable[[str], Bench]) -> None:
    """What two sides are does not change by asking."""
    refused = PairProbe(lane=Lane.TCP, code=ErrorCode.LANE_REFUSED, detail="required is sysv")
    rig = bench("require:sysv")
    engine = await rig.use(refused)
    rig.speak(0)
    await settle()
    assert len(engine.asked) == 1
    assert rig.states() == {"prefill-0": PairState.REFUSED}
    trouble = "prefill-0 is on lane tcp, required is sysv (required is sysv)"
    assert rig.watch.trouble() == trouble


async def test_one_good_way_is_enough_to_be_ready(bench: Callable[[str], Bench]) -> None:
    """Under `require` a worker is in trouble when all of its ways are wrong, not when one is."""
    rig = bench("require:sysv")
    await rig.use(PairProbe(lane=Lane.TCP), GOOD)
    assert rig.watch.trouble() == ""
    rig.speak(0)
    await settle()
    assert rig.watch.trouble()
    rig.speak(1)
    await settle()
    assert rig.watch.trouble() == ""


async def test_a_successor_takes_the_place_of_the_dead(bench: Callable[[str], Bench]) -> None:
    """A new life of a prefill is a new way; the silent ones are forgotten."""
    rig = bench("allow")
    engine = await rig.use(GOOD)
    rig.speak(0)
    await settle()
    rig.speak(0, life="b")
    await settle()
    assert len(engine.asked) == 2
    assert [report.peer[:2] for report in rig.watch.reports()] == ["b0"]
    rig.time.now += 6
    assert rig.watch.reports() == ()


async def test_cards_that_differ_are_never_probed(bench: Callable[[str], Bench]) -> None:
    """No byte goes to an engine of another shape, another model, or that is not ready."""
    rig = bench("allow")
    engine = await rig.use(GOOD)
    other = {n: getattr(CARD, n) for n in CARD.__struct_fields__} | {"layers": 9}
    rig.speak(0, card=CompatCard(**other))
    rig.speak(1, state=WorkerState.DRAINING)
    rig.speak(2, address=None)
    await settle()
    assert engine.asked == []


async def test_an_operator_gets_fresh_figures(bench: Callable[[str], Bench]) -> None:
    """All ways are gone again when asked for, but not twice within half a second."""
    rig = bench("allow")
    engine = await rig.use(GOOD)
    rig.speak(0)
    await settle()
    await rig.watch.answer(PairsRequest(probe=True))
    assert len(engine.asked) == 1
    rig.time.now += 1
    (report,) = (await rig.watch.answer(PairsRequest(probe=True))).reports
    assert len(engine.asked) == 2
    assert report.sizes == GOOD.sizes
    (again,) = (await rig.watch.answer(PairsRequest())).reports
    assert again == report
    assert len(engine.asked) == 2


async def test_what_prefill_requires_is_a_trouble_too(bench: Callable[[str], Bench]) -> None:
    """A decode worker that allows any lane says so where every prefill worker refuses its lane."""
    rig = bench("allow")
    await rig.use(PairProbe(lane=Lane.TCP))
    rig.speak(0, kv_lanes=LanePolicy.parse("require:sysv"))
    await settle()
    assert rig.watch.trouble().startswith("prefill-0 is on lane tcp, required is sysv")
    rig.speak(1)
    await settle()
    assert rig.watch.trouble() == ""
