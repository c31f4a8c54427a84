"""The judge finds what it is there to find: each test hands it evidence of one broken promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proto.errors import ErrorCode
from proto.events import Event, EventKind
from proto.ids import Incarnation, InstanceId, RequestId, Room, TenantHash, lease_id
from proto.ledger import Cleaned, Mode, Placement, RequestRecord, RequestState, Sink
from proto.workers import Heartbeat, LeaseRef, LeaseSide, Role, WorkerLoad, WorkerRef, WorkerState
from tests.chaos.faults import Strike
from tests.chaos.judge.clients import check_clients
from tests.chaos.judge.engines import check_engines
from tests.chaos.judge.evidence import Evidence, Verdict
from tests.chaos.judge.figures import figures_of
from tests.chaos.judge.ledger import check_ledger
from tests.chaos.judge.report import render
from tests.chaos.load import Ask, Manner, Told
from tests.chaos.world.oracle import Right
from tests.chaos.world.watcher import Listed
from tests.support.http_client import Reply

RID = RequestId("0" * 26)
TRACE = "a" * 32
GATEWAY = InstanceId("gateway-00000000")
PREFILL = InstanceId("prefill-00000000")
DECODE = InstanceId("decode-00000000")
LIFE = Incarnation("1" * 16)
LEASE_ID = lease_id(LIFE, RID, 0, "src")
RIGHT = Right(text=" one two", tokens=2, finish="length", prompt_tokens=10)


def frame(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": f"chatcmpl-{RID}", "choices": [choice]}).encode() + b"\n\n"


def streamed(*frames: bytes, whole: bool = True) -> Reply:
    headers = {"content-type": "text/event-stream", "x-pdbus-decode": DECODE}
    return Reply(status=200, headers=headers, body=b"".join(frames), whole=whole)


DONE = b"data: [DONE]\n\n"
GOOD = streamed(frame({"content": " one"}), frame({"content": " two"}), frame({}, "length"), DONE)


def failed(code: ErrorCode, status: int) -> Reply:
    body = json.dumps({"error": {"code": code, "message": "", "type": ""}}).encode()
    return Reply(status=status, headers={}, body=body, whole=True)


def told(reply: Reply = GOOD, *, key: str | None = None, **fields: Any) -> Told:
    ask = Ask(1, "?", 2, stream=True, ignore_eos=True, key=key)
    values: dict[str, Any] = {"sent_ms": 1_000, "ended_ms": 2_000, "trace": TRACE}
    return Told(ask, Manner(0), reply=reply, **(values | fields))


def worker(role: Role, instance: InstanceId) -> WorkerRef:
    return WorkerRef(role=role, instance=instance, incarnation=LIFE)


PLACE = Placement(
    attempt=0,
    mode=Mode.DISAGGREGATED,
    decode=worker(Role.DECODE, DECODE),
    prefill=worker(Role.PREFILL, PREFILL),
    room=Room(1),
    compat="",
)
RECORD = RequestRecord(
    rid=RID,
    tenant=TenantHash("t"),
    model="scripted",
    state=RequestState.DONE,
    attempt=0,
    sink=Sink(gateway=GATEWAY, incarnation=LIFE),
    digest="d",
    deadline_ms=21_000,
    created_ms=1_000,
    ended_ms=2_000,
    placement=PLACE,
    cleaned=Cleaned(src=True, dst=True),
    traceparent=f"00-{TRACE}-{'b' * 16}-01",
)


def event(kind: EventKind, at_ms: float = 1_500, attempt: int = 0, **data: Any) -> Event:
    return Event(
        kind=kind,
        rid=RID,
        attempt=attempt,
        instance=PREFILL,
        at_ms=at_ms,
        start_ms=at_ms,
        data=data,
    )


EVENTS = [
    event(EventKind.REQUEST_ACCEPTED, prompt_tokens=10),
    event(EventKind.STAGE_PREFILL, tokens=10, cached_tokens=0),
    event(EventKind.REQUEST_DONE, 2_000),
    event(EventKind.LEASE_ENDED, 2_000, side="src", lease=LEASE_ID),
    event(EventKind.LEASE_FREED, 2_000, side="src", lease=LEASE_ID),
]
IDLE = WorkerLoad(slots=8, slots_free=8, kv_total_tokens=100)
BEAT = Heartbeat(
    role=Role.PREFILL,
    instance=PREFILL,
    incarnation=LIFE,
    version="0",
    sequence=1,
    sent_ms=9_000,
    state=WorkerState.READY,
    load=IDLE,
)


def evidence(**changes: Any) -> Evidence:
    """Return what a faultless request leaves, with changes."""
    values: dict[str, Any] = {
        "told": [told()],
        "right": lambda _: RIGHT,
        "records": {RID: RECORD},
        "events": EVENTS,
        "beats": [BEAT],
        "slots": {GATEWAY: "gateway-0", PREFILL: "prefill-0", DECODE: "decode-0"},
        "restarts": {"prefill-0": 0},
    }
    return Evidence(**(values | changes))


def judged(given: Evidence) -> Verdict:
    verdict = Verdict()
    for check in (check_clients, check_ledger, check_engines):
        check(given, verdict)
    return verdict


def changed(**fields: Any) -> dict[RequestId, RequestRecord]:
    return {RID: msgspec.structs.replace(RECORD, **fields)}


def test_a_faultless_request_is_no_violation() -> None:
    """Evidence of a request that went well passes, and the report says so."""
    given = evidence()
    verdict = judged(given)
    assert verdict.violations == []
    text = render(figures_of(given, verdict))
    assert "answered 1" in text
    assert "violations   0" in text


LEASE = LeaseRef(lease=LEASE_ID, rid=RID, attempt=0, side=LeaseSide.SRC, tokens=10, age_s=1.0)
HELD = msgspec.structs.replace(BEAT, leases=(LEASE,))
USED = msgspec.structs.replace(BEAT, load=msgspec.structs.replace(IDLE, kv_used_tokens=16))
CUT = streamed(frame({"content": " one"}), frame({}, "length"), DONE)
WRONG = streamed(frame({"content": " six"}), frame({}, "length"), DONE)
NO_END = streamed(frame({"content": " one"}))
BROKEN = streamed(frame({"content": " one"}), whole=False)
OTHER = msgspec.structs.replace(EVENTS[1], instance=InstanceId("prefill-11111111"))
LOST = event(EventKind.ENGINE_LOST, incarnation=LIFE, reason="it broke")

BROKEN_PROMISES: dict[str, tuple[str, Callable[[], Evidence]]] = {
    "a cut answer that claims to be complete": ("I1", lambda: evidence(told=[told(CUT)])),
    "a wrong answer": ("I1", lambda: evidence(told=[told(WRONG)])),
    "a stream that just ends": ("I1", lambda: evidence(told=[told(NO_END)])),
    "a connection that breaks": ("I2", lambda: evidence(told=[told(BROKEN)])),
    "silence": ("I2", lambda: evidence(told=[told(Reply(), silent=True)])),
    "an answer after the last moment": ("I2", lambda: evidence(told=[told(ended_ms=40_000)])),
    "a gateway that is not there": ("ready", lambda: evidence(told=[told(refused=True)])),
    "an internal error": (
        "internal",
        lambda: evidence(told=[told(failed(ErrorCode.INTERNAL, 500))]),
    ),
    "a status that is not in the table": (
        "I2",
        lambda: evidence(told=[told(failed(ErrorCode.DEADLINE, 500))], records={}),
    ),
    "a request without an end": (
        "I2",
        lambda: evidence(records=changed(state=RequestState.STREAMING)),
    ),
    "answered and not done": (
        "I2",
        lambda: evidence(records=changed(state=RequestState.FAILED, error=ErrorCode.DECODE_LOST)),
    ),
    "failed and done": ("I2", lambda: evidence(told=[told(failed(ErrorCode.DECODE_LOST, 502))])),
    "two ends in the events": (
        "I2",
        lambda: evidence(events=[*EVENTS, event(EventKind.REQUEST_FAILED, 2_001)]),
    ),
    "an end without an event": (
        "I2",
        lambda: evidence(events=[e for e in EVENTS if e.kind is not EventKind.REQUEST_DONE]),
    ),
    "a terminal state that changed": ("I2", lambda: evidence(turned=["it did"])),
    "an end long after the deadline": ("I2", lambda: evidence(records=changed(ended_ms=40_000))),
    "a lease at rest": ("I3", lambda: evidence(beats=[HELD])),
    "KV at rest": ("I3", lambda: evidence(beats=[USED])),
    "a side that is not proved free": ("I3", lambda: evidence(records=changed(cleaned=Cleaned()))),
    "a lease without a proof": ("I3", lambda: evidence(events=EVENTS[:-1])),
    "a lease that is held for long": (
        "I3",
        lambda: evidence(listed=[Listed(LEASE_ID, RID, PREFILL, 0, "src", 9_000)]),
    ),
    "a cancelled lease that is held for long": (
        "I7",
        lambda: evidence(
            told=[],
            records=changed(state=RequestState.CANCELLED),
            events=[event(EventKind.REQUEST_CANCELLED)],
            listed=[Listed(LEASE_ID, RID, PREFILL, 0, "src", 9_000)],
        ),
    ),
    "a lease that is held after its proof": (
        "I3",
        lambda: evidence(listed=[Listed(LEASE_ID, RID, PREFILL, 0, "src", 3_000)]),
    ),
    "a request that runs on": (
        "I7",
        lambda: evidence(told=[told(Reply(), left_ms=1_100)], records=changed(ended_ms=9_000)),
    ),
    "a second prefill of one attempt": ("I6", lambda: evidence(events=[*EVENTS, OTHER])),
    "an attempt that nobody assigned": (
        "I4",
        lambda: evidence(
            events=[*EVENTS, event(EventKind.STAGE_PREFILL, attempt=1, tokens=0, cached_tokens=0)]
        ),
    ),
    "too many attempts": ("I12", lambda: evidence(records=changed(attempt=2))),
    "two answers to one key": (
        "I8",
        lambda: evidence(told=[told(key="k"), told(WRONG, key="k")]),
    ),
    "a key taken for another body": (
        "I8",
        lambda: evidence(told=[told(failed(ErrorCode.IDEMPOTENCY_KEY_REUSED, 422), key="k")]),
    ),
    "a survivor that was restarted": ("survivor", lambda: evidence(restarts={"prefill-0": 1})),
    "an engine that is lost with its peer": (
        "survivor",
        lambda: evidence(
            events=[*EVENTS, LOST], strikes=[Strike("kill engine host", "decode-0", 1_000, 2_000)]
        ),
    ),
    "a victim that does not come back": (
        "ready",
        lambda: evidence(
            strikes=[Strike("kill prefill", "prefill-0", 5_000, 6_000, recovered=False)],
            restarts={"prefill-0": 1},
        ),
    ),
    "a logged exception": ("traceback", lambda: evidence(tracebacks=["it broke"])),
}


def test_an_engine_that_was_killed_is_lost() -> None:
    """The loss of an engine has its reason in the kill of its own host."""
    kill = Strike("kill engine host", "prefill-0", 1_000, 2_000)
    assert judged(evidence(events=[*EVENTS, LOST], strikes=[kill])).violations == []


@pytest.mark.parametrize("name", BROKEN_PROMISES)
def test_a_broken_promise_is_found(name: str) -> None:
    """Evidence of one broken promise gives a violation of that name."""
    promise, build = BROKEN_PROMISES[name]
    assert promise in {violation.name for violation in judged(build()).violations}


def test_a_fault_excuses_what_it_explains() -> None:
    """A connection may break with its gateway, and a connection to a dead one may be refused."""
    kill = Strike("kill gateway", "gateway-0", 900, 2_500)
    lost = told(replace(BROKEN))
    refused = told(Reply(), refused=True)
    gone = changed(state=RequestState.FAILED, error=ErrorCode.GATEWAY_LOST)
    end = [event(EventKind.REQUEST_FAILED, 2_000)]
    given = evidence(
        told=[lost, refused],
        records=gone,
        events=[e for e in EVENTS if e.kind is not EventKind.REQUEST_DONE] + end,
        strikes=[kill],
        restarts={"gateway-0": 1},
    )
    assert judged(given).violations == []
