"""What a router says when the pairs of its fleet get no work."""

from __future__ import annotations

from libs.fleet import Fleet
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane
from proto.pairs import LanePolicy, PairReport, PairState
from proto.workers import Heartbeat, Role, WorkerState
from services.router.refusals import Refusals
from tests.unit.services.router.test_candidates import card

PREFILL = Incarnation("p" * 16)


def beat(role: Role, n: int = 0, **changes) -> Heartbeat:
    """Return the word of one worker."""
    facts = {
        "role": role,
        "instance": InstanceId(f"{role}-{n}"),
        "incarnation": PREFILL if role is Role.PREFILL else Incarnation(f"d{n}".ljust(16, "0")),
        "version": "1",
        "sequence": 1,
        "sent_ms": 0,
        "state": WorkerState.READY,
        "card": card(),
    }
    return Heartbeat(**(facts | changes))


def on(lane: Lane) -> tuple[PairReport, ...]:
    """Return what a decode worker says of its way to the prefill engine."""
    return (
        PairReport(peer=PREFILL, instance=InstanceId("prefill-0"), state=PairState.UP, lane=lane),
    )


def test_a_router_says_so_when_all_pairs_are_refused() -> None:
    """UCX-01: its readiness names a pair and the rule; one pair that fits ends that."""
    fleet = Fleet()
    refusals = Refusals(fleet)

    def say(word: Heartbeat) -> None:
        member = fleet.hear(word, 1.0)
        assert member is not None
        refusals.heard(member)

    say(beat(Role.PREFILL, kv_lanes=LanePolicy.parse("require:sysv")))
    assert refusals.trouble() == ""
    say(beat(Role.DECODE, pairs=on(Lane.TCP)))
    assert refusals.trouble().startswith("all 1 pairs are refused: prefill-0 → decode-0: lane tcp")
    say(beat(Role.DECODE, 1, pairs=on(Lane.SYSV)))
    assert refusals.trouble() == ""
