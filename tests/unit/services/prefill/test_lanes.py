"""A prefill worker that requires a lane hears from decode workers whether any of them has it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from libs.worker import Worker
from proto import subjects
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane
from proto.pairs import LanePolicy, PairReport, PairState
from proto.workers import Heartbeat, Role, WorkerRef, WorkerState
from services.prefill.lanes import LaneWatch
from tests.support.records import card_of

CARD = card_of()
OWN = WorkerRef(
    role=Role.PREFILL, instance=InstanceId("prefill-0"), incarnation=Incarnation("a" * 16)
)
TROUBLE = "prefill-0 → decode-0: lane tcp, prefill-0 requires sysv"


class Bench:
    """A watch, and a worker that has no more than what it looks at."""

    def __init__(self, policy: str) -> None:
        self.now = 100.0
        self.subscribed: list[str] = []
        self.worker = SimpleNamespace(
            bus=self,
            clock=self,
            kv_lanes=LanePolicy.parse(policy),
            ready=SimpleNamespace(card=CARD),
            ref=OWN,
            state=WorkerState.READY,
        )
        self.watch = LaneWatch(cast("Worker", self.worker))
        self._hear: Callable[[str, Heartbeat], None] | None = None

    def monotonic(self) -> float:
        return self.now

    async def subscribe(self, subject: str, _kind: type, hear: Any) -> Any:
        self.subscribed.append(subject)
        self._hear = hear
        return self

    async def close(self) -> None:
        self._hear = None

    def speak(self, n: int, lane: Lane | None, **changes: Any) -> None:
        """Let a decode worker tell on which lane it reached this worker; None is no word of it."""
        pairs = ()
        if lane is not None:
            report = PairReport(
                peer=OWN.incarnation, instance=OWN.instance, state=PairState.UP, lane=lane
            )
            pairs = (report,)
        facts = {
            "role": Role.DECODE,
            "instance": InstanceId(f"decode-{n}"),
            "incarnation": Incarnation(f"{n}".ljust(16, "0")),
            "version": "1",
            "sequence": 1,
            "sent_ms": 0,
            "state": WorkerState.READY,
            "card": CARD,
            "pairs": pairs,
        }
        assert self._hear is not None
        self._hear("", Heartbeat(**(facts | changes)))


@pytest.mark.parametrize("policy", ["allow", "warn:sysv"])
async def test_where_no_lane_is_required_nobody_is_heard(policy: str) -> None:
    """A worker that refuses nobody has no subscription, and no trouble."""
    bench = Bench(policy)
    await bench.watch.start()
    assert bench.subscribed == []
    assert bench.watch.trouble() == ""
    await bench.watch.close()


async def test_a_worker_is_in_trouble_when_all_of_its_ways_are_wrong() -> None:
    """Not when it is alone, not when one way is right; and one not probed yet counts as wrong."""
    bench = Bench("require:sysv")
    await bench.watch.start()
    assert bench.subscribed == [subjects.DECODE_HEARTBEATS]
    assert bench.watch.trouble() == ""
    bench.speak(0, Lane.TCP)
    assert bench.watch.trouble() == TROUBLE
    bench.speak(1, None)
    assert bench.watch.trouble() == TROUBLE
    bench.speak(1, Lane.SYSV)
    assert bench.watch.trouble() == ""


async def test_what_decode_requires_is_a_trouble_too() -> None:
    """The router refuses a pair by the rule of either side."""
    bench = Bench("require:sysv")
    await bench.watch.start()
    bench.speak(0, Lane.SYSV, kv_lanes=LanePolicy.parse("require:cma"))
    assert bench.watch.trouble() == "prefill-0 → decode-0: lane sysv, decode-0 requires cma"


@pytest.mark.parametrize("gone", ["silent", "draining", "other card"])
async def test_only_living_workers_of_the_same_card_count(gone: str) -> None:
    """A right way to somebody who is not there, or never was a pair, helps nobody."""
    bench = Bench("require:sysv")
    await bench.watch.start()
    other = msgspec.structs.replace(CARD, page_size=1)
    bench.speak(1, Lane.SYSV, card=other if gone == "other card" else CARD)
    if gone == "silent":
        bench.now += 6
    elif gone == "draining":
        bench.speak(1, Lane.SYSV, state=WorkerState.DRAINING)
    bench.speak(0, Lane.TCP)
    assert bench.watch.trouble() == TROUBLE


async def test_ways_that_cannot_be_gone_are_named_with_their_reason() -> None:
    """The decode worker's words about its probe stand behind the lane."""
    bench = Bench("require:sysv")
    await bench.watch.start()
    report = PairReport(
        peer=OWN.incarnation,
        instance=OWN.instance,
        state=PairState.FAILED,
        code=ErrorCode.PREFILL_LOST,
        detail="no answer",
    )
    bench.speak(0, None, pairs=(report,))
    assert bench.watch.trouble() == (
        "prefill-0 → decode-0: lane unknown, prefill-0 requires sysv (no answer)"
    )


async def test_an_engine_that_is_not_there_has_its_own_trouble() -> None:
    """While the engine starts, what others say of the former one counts no more."""
    bench = Bench("require:sysv")
    await bench.watch.start()
    bench.speak(0, Lane.TCP)
    bench.worker.ready = None
    assert bench.watch.trouble() == ""
