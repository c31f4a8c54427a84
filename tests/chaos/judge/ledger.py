"""Whether client, ledger and events agree, and each request ended once."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from proto.errors import ErrorCode, spec_of
from proto.events import EventKind
from proto.ids import RequestId, keyed_request_id, tenant_hash
from proto.ledger import RequestRecord, RequestState
from tests.chaos.judge.evidence import ENDS, Evidence, Verdict
from tests.chaos.load import Told

__all__ = ["check_ledger"]

_TENANT = tenant_hash("anonymous")
_FORGET_MS = 30_000
_GENERATIONS = 4
_EVENT_LAG_MS = 15_000
"""How long an event may wait for its stream: an outage of nats-server, and a little more."""
_RUN_ON_MS = 2_000
_AGAIN_MS = 6_000
"""How long after a fault cleanup looks at the ledger again, at the latest."""
_PARTED_MS = 4_000
_ENDED_FOR_IT = {ErrorCode.DEADLINE, ErrorCode.GATEWAY_LOST}
"""What cleanup writes for a gateway that is gone."""
_STATES = {
    EventKind.REQUEST_DONE: RequestState.DONE,
    EventKind.REQUEST_FAILED: RequestState.FAILED,
    EventKind.REQUEST_CANCELLED: RequestState.CANCELLED,
}
_TOLD_CANCELLED = {ErrorCode.CANCELLED, ErrorCode.ALREADY_CANCELLED, ErrorCode.DRAINING}


def check_ledger(evidence: Evidence, verdict: Verdict) -> None:
    """I2, I8 and I12 from records and events."""
    for text in evidence.turned:
        verdict.violate("I2", f"a terminal state changed: {text}")
    for record in evidence.records.values():
        _check_record(evidence, record, verdict)
    for told in evidence.told:
        rid = evidence.rid_of(told)
        record = evidence.records.get(rid) if rid is not None else None
        if record is None:
            if told.reply.claims_completeness:
                verdict.violate("I2", f"ask {told.ask.number}: an answer without a record")
        elif told.ask.key is None:
            _compare(evidence, told, record, verdict)
        else:
            _compare_keyed(evidence, told, record, verdict)
    _check_generations(evidence, verdict)


def _check_record(evidence: Evidence, record: RequestRecord, verdict: Verdict) -> None:
    rid = record.rid
    if not record.ended:
        verdict.violate("I2", f"{rid}: still {record.state} at rest")
        return
    told = {_STATES[e.kind] for e in evidence.by_rid.get(rid, ()) if e.kind in ENDS}
    if len(told) > 1 or (told and record.state not in told):
        verdict.violate("I2", f"{rid}: the record says {record.state}, events say {sorted(told)}")
    if not told:
        _check_missing_event(evidence, record, verdict)
    if record.attempt > 1:
        verdict.violate("I12", f"{rid}: {record.attempt + 1} attempts")
    _check_late(evidence, record, verdict)


def _check_late(evidence: Evidence, record: RequestRecord, verdict: Verdict) -> None:
    """I2: an end within ten seconds after the deadline, and the time that nobody could write it."""
    ended = record.ended_ms or 0
    late_ms = ended - record.deadline_ms
    away_ms = sum(
        s.overlap_ms(record.created_ms, ended) + _AGAIN_MS
        for s in evidence.struck(record.deadline_ms - _AGAIN_MS, ended, "cleanup-0")
    )
    if late_ms > 10_000 + away_ms:
        verdict.violate("I2", f"{record.rid}: ended {late_ms / 1000:.1f} s after its deadline")


def _check_missing_event(evidence: Evidence, record: RequestRecord, verdict: Verdict) -> None:
    """The event of an end may be lost only with the process that had to tell it."""
    ended = record.ended_ms or 0
    gateway = evidence.slots.get(record.sink.gateway, "")
    lost = evidence.struck(
        ended - 3_000, ended + _EVENT_LAG_MS, gateway, "cleanup-0", kinds=["kill"]
    )
    if any(lost):
        verdict.remark("ends whose event was lost with its process")
    else:
        verdict.violate("I2", f"{record.rid}: {record.state} {record.error}, and no event of it")


def _compare(evidence: Evidence, told: Told, record: RequestRecord, verdict: Verdict) -> None:
    name, state = f"ask {told.ask.number} {record.rid}", record.state
    if told.reply.claims_completeness:
        _compare_answered(evidence, told, record, verdict)
    elif told.left_ms is not None:
        _compare_left(evidence, told, record, verdict)
    elif told.reply.error is not None:
        code = told.reply.error["code"]
        if state is RequestState.DONE:
            verdict.violate("I2", f"{name}: failed with {code}, the record says done")
        elif state is RequestState.CANCELLED and code not in _TOLD_CANCELLED:
            verdict.violate("I2", f"{name}: failed with {code}, the record says cancelled")
        elif state is RequestState.FAILED and record.error != code:
            _compare_codes(evidence, told, record, verdict)


def _compare_answered(
    evidence: Evidence, told: Told, record: RequestRecord, verdict: Verdict
) -> None:
    """Who was answered is done; only bus and gateway together can keep that out of the ledger.

    A gateway whose ledger is away answers after two seconds and writes later; if it dies before
    that, nobody knows of the answer but its client.
    """
    if record.state is RequestState.DONE:
        return
    ended = told.ended_ms
    gateway = evidence.slots.get(record.sink.gateway, "")
    parted = any(
        not s.is_kill or s.target == "nats-0"
        for s in evidence.struck(ended - _PARTED_MS, ended, gateway)
    )
    killed = any(evidence.struck(ended - _PARTED_MS, record.ended_ms or 0, kinds=["kill gateway"]))
    if parted and killed and record.error in _ENDED_FOR_IT:
        verdict.remark("answers without a ledger, whose gateway died before it could write them")
    else:
        text = f"answered, the record says {record.state} {record.error}"
        verdict.violate("I2", f"{told.ask.key or told.ask.number} {record.rid}: {text}")


def _compare_codes(evidence: Evidence, told: Told, record: RequestRecord, verdict: Verdict) -> None:
    """A gateway that was parted from the ledger leaves the ending to cleanup, with its code."""
    code = (told.reply.error or {})["code"]
    if any(evidence.struck(told.sent_ms - 1_000, told.ended_ms + 5_000)):
        verdict.remark("codes that differ after a fault")
    else:
        verdict.violate("I2", f"{record.rid}: failed with {code}, the record says {record.error}")


def _compare_left(evidence: Evidence, told: Told, record: RequestRecord, verdict: Verdict) -> None:
    left, ended = told.left_ms or 0, record.ended_ms or 0
    if record.state is not RequestState.DONE or ended <= left + _RUN_ON_MS:
        return
    if evidence.calm(left - 1_000, ended):
        late = (ended - left) / 1000
        verdict.violate("I7", f"{record.rid}: done {late:.1f} s after its client had left")
    else:
        verdict.remark("requests that were done although their client had left")


def _compare_keyed(evidence: Evidence, told: Told, record: RequestRecord, verdict: Verdict) -> None:
    name, state = f"{told.ask.key} {record.rid}", record.state
    if told.reply.claims_completeness:
        _compare_answered(evidence, told, record, verdict)
        return
    code = (told.reply.error or {}).get("code")
    if code == ErrorCode.ALREADY_CANCELLED and state is not RequestState.CANCELLED:
        verdict.violate("I8", f"{name}: {code}, the record says {state}")
    if code == ErrorCode.RESULT_EXPIRED and not any(
        s.target == "nats-0" and s.kind.startswith("kill") for s in evidence.strikes
    ):
        verdict.violate("I8", f"{name}: {code} of a result that nothing has taken away")
    if code is not None and state is RequestState.DONE:
        verdict.remark(f"keyed readers that got {code} of a request that is done")


def _check_generations(evidence: Evidence, verdict: Verdict) -> None:
    """I8: a key starts anew only when its failure is forgotten."""
    keys = {told.ask.key for told in evidence.told if told.ask.key is not None}
    runs: dict[str, list[RequestRecord]] = defaultdict(list)
    for key in keys:
        for generation in range(_GENERATIONS):
            record = evidence.records.get(RequestId(keyed_request_id(_TENANT, key, generation)))
            if record is not None:
                runs[key].append(record)
    for key, records in runs.items():
        for before, after in pairwise(records):
            forgot = after.created_ms - (before.ended_ms or after.created_ms) >= _FORGET_MS
            failed = before.state is RequestState.FAILED and before.error is not None
            if not (failed and spec_of(before.error).retryable and forgot):
                verdict.violate("I8", f"{key}: ran again after {before.state} {before.error}")
