"""Which pairs may work together, by what both workers say of themselves."""

from __future__ import annotations

import pytest

from libs.fleet.pairs import refusal_of, refusals, warning_of
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane
from proto.pairs import LaneMode, LanePolicy, PairReport, PairState
from proto.workers import CompatCard, Heartbeat, Role, WorkerState
from tests.support.records import card_of

CARD = card_of()
PREFILL = Incarnation("p" * 16)


def beat(role: Role, **changes) -> Heartbeat:
    """Return the word of one worker."""
    facts = {
        "role": role,
        "instance": InstanceId(f"{role}-0"),
        "incarnation": PREFILL if role is Role.PREFILL else Incarnation("d" * 16),
        "version": "1",
        "sequence": 1,
        "sent_ms": 0,
        "state": WorkerState.READY,
        "card": CARD,
    }
    return Heartbeat(**(facts | changes))


def pair(policy: str = "allow", side: Role = Role.DECODE, **report) -> tuple[Heartbeat, Heartbeat]:
    """Return a pair, one side of which has a policy, with a report if one is given."""
    told = {"peer": PREFILL, "instance": InstanceId("prefill-0"), "state": PairState.UP} | report
    rules = {"kv_lanes": LanePolicy.parse(policy)}
    return (
        beat(Role.PREFILL, **(rules if side is Role.PREFILL else {})),
        beat(
            Role.DECODE,
            pairs=(PairReport(**told),) if report else (),
            **(rules if side is Role.DECODE else {}),
        ),
    )


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize(
    ("policy", "lane", "refused"),
    [
        ("allow", None, False),
        ("allow", Lane.TCP, False),
        ("require:sysv", Lane.SYSV, False),
        ("require:sysv", Lane.TCP, True),
        ("require:sysv", Lane.UNKNOWN, True),
        ("require:sysv", None, True),
        ("require:rc,tcp", Lane.TCP, False),
        ("warn:sysv", Lane.TCP, False),
        ("warn:sysv", None, False),
    ],
)
def test_a_policy_of_either_side_decides(
    side: Role, policy: str, lane: Lane | None, refused: bool
) -> None:
    """`require` refuses other lanes and unknown ones; `warn` and `allow` refuse none."""
    prefill, decode = pair(policy, side, **({"lane": lane} if lane else {}))
    refusal = refusal_of(prefill, decode)
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.code is ErrorCode.LANE_REFUSED
        assert f"lane {lane or 'unknown'}, {side}-0 requires " in refusal.detail


def test_a_warning_is_words_only() -> None:
    """The pair is used, and the words name lane and wish."""
    prefill, decode = pair("warn:sysv", lane=Lane.TCP)
    assert refusal_of(prefill, decode) is None
    assert "lane tcp, decode-0 wants sysv" in warning_of(prefill, decode)
    assert warning_of(*pair("warn:sysv", lane=Lane.SYSV)) == ""


def test_a_way_that_cannot_be_gone_is_no_pair() -> None:
    """A probe that failed keeps requests off; its code and words are those of the refusal."""
    refusal = refusal_of(
        *pair(state=PairState.FAILED, code=ErrorCode.PREFILL_LOST, detail="no answer")
    )
    assert refusal is not None
    assert refusal.code is ErrorCode.PREFILL_LOST
    assert refusal.detail == "decode-0 cannot reach prefill-0: no answer"


def test_workers_of_other_models_are_no_pair_to_speak_of() -> None:
    """Two models in one fleet are no fault; two names for one model are."""
    other = {n: getattr(CARD, n) for n in CARD.__struct_fields__} | {"model": "other"}
    beats = [beat(Role.PREFILL), beat(Role.DECODE, card=CompatCard(**(other | {"layers": 9})))]
    assert list(refusals(beats)) == []
    (refusal,) = refusals([beat(Role.PREFILL), beat(Role.DECODE, card=CompatCard(**other))])
    assert refusal.fields == ("model",)


@pytest.mark.parametrize(
    ("text", "mode", "lanes"),
    [
        ("allow", LaneMode.ALLOW, ()),
        ("require:rc,cuda_ipc", LaneMode.REQUIRE, (Lane.RC, Lane.CUDA_IPC)),
        ("warn: sysv , tcp", LaneMode.WARN, (Lane.SYSV, Lane.TCP)),
    ],
)
def test_a_policy_is_read(text: str, mode: LaneMode, lanes: tuple[Lane, ...]) -> None:
    """All forms that an operator may write, and back."""
    policy = LanePolicy.parse(text)
    assert (policy.mode, policy.lanes) == (mode, lanes)
    assert LanePolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "sysv,tcp", "require", "require:", "allow:tcp", "require:tpc", "require:unknown"]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    """A misspelt lane or mode is an error at the start, not a policy that allows everything."""
    with pytest.raises(ValueError, match="is not"):
        LanePolicy.parse(text)
