"""Whether the engines did each thing once, and hold nothing at rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from proto.events import Event, EventKind
from proto.ids import RequestId
from proto.workers import Role, WorkerState
from tests.chaos.judge.evidence import Evidence, Verdict

__all__ = ["MOST_PREFILL", "check_engines", "prefill_tokens"]

MOST_PREFILL = 1.05
"""Prompt tokens computed, in relation to those submitted."""
_FREE_MS = 5_000
_FREE_FAULT_MS = 25_000
"""The bound inside a transfer, and while a fault keeps the order from its worker."""
_NEAR_MS = 6_000
_SILENT_MS = 5_000
_CLOCK_MS = 200
"""All processes share one clock; a heartbeat is put together a little before it is sent."""
_WORKERS = frozenset({Role.PREFILL, Role.DECODE, Role.AGGREGATED})


def check_engines(evidence: Evidence, verdict: Verdict) -> None:
    """I3, I4, I6 and I7 from heartbeats and events; survivors and readiness."""
    _check_rest(evidence, verdict)
    _check_leases(evidence, verdict)
    _check_proofs(evidence, verdict)
    _check_runs(evidence, verdict)
    computed, submitted = prefill_tokens(evidence)
    if computed > MOST_PREFILL * submitted:
        verdict.violate("I6", f"{computed} prompt tokens computed, {submitted} submitted")
    kills = Counter(s.target for s in evidence.strikes if s.is_kill and "host" not in s.kind)
    for slot, restarts in evidence.restarts.items():
        if restarts > kills[slot] > 0:
            # What starts while the bus is away may end with a plain reason, and start again.
            verdict.remarks["restarts of what was not ready again yet"] += restarts - kills[slot]
        elif restarts != kills[slot]:
            verdict.violate("survivor", f"{slot}: {restarts} restarts, {kills[slot]} kills")
    _check_lives(evidence, verdict)
    for text in evidence.late:
        verdict.violate("ready", f"not ready at rest: {text}")
    for strike in evidence.strikes:
        if not strike.recovered:
            verdict.violate("ready", f"{strike.target} was not ready within 60 s: {strike.kind}")
    for text in evidence.tracebacks:
        verdict.violate("traceback", text)


def _check_lives(evidence: Evidence, verdict: Verdict) -> None:
    """An engine is lost with its own kill only, whatever becomes of its peers and its service."""
    for event in evidence.events:
        if event.kind is not EventKind.ENGINE_LOST:
            continue
        slot = evidence.slots.get(event.instance, "")
        kills = evidence.struck(
            event.at_ms - _NEAR_MS, event.at_ms, slot, kinds=["kill engine host"]
        )
        if not any(kills):
            why = event.data.get("reason")
            verdict.violate(
                "survivor", f"the engine of {slot} was lost, and nobody killed it: {why}"
            )


def prefill_tokens(evidence: Evidence) -> tuple[int, int]:
    """Return how many prompt tokens were computed, and how many were submitted."""
    computed = submitted = 0
    for event in evidence.events:
        if event.kind is EventKind.STAGE_PREFILL:
            computed += int(event.data["tokens"]) - int(event.data.get("cached_tokens", 0))
        elif event.kind is EventKind.REQUEST_ACCEPTED:
            submitted += int(event.data["prompt_tokens"])
    return computed, submitted


def _check_rest(evidence: Evidence, verdict: Verdict) -> None:
    """I3: idle pools are as they were."""
    for beat in evidence.beats:
        if beat.role not in _WORKERS:
            continue
        if beat.state is not WorkerState.READY or beat.load is None:
            verdict.violate("ready", f"{beat.instance}: {beat.state} at rest: {beat.reason}")
            continue
        leases = [ref.lease for ref in beat.leases]
        if leases or beat.load.kv_used_tokens or beat.load.kv_reserved_tokens or beat.load.running:
            verdict.violate("I3", f"{beat.instance} at rest: {beat.load}, leases {leases}")


def _check_leases(evidence: Evidence, verdict: Verdict) -> None:
    """I3 and I7: no lease outlives its request for longer than its bound."""
    for lease in evidence.listed:
        record = evidence.records.get(lease.rid)
        if record is None or record.ended_ms is None:
            continue
        ended = record.ended_ms
        over_ms = lease.last_ms - ended
        if over_ms <= _FREE_MS:
            continue
        near = list(evidence.struck(ended - 1_000, ended + _NEAR_MS))
        allowed = _FREE_FAULT_MS + sum(s.overlap_ms(ended, lease.last_ms) for s in near)
        if not near or over_ms > allowed:
            name = "I7" if record.state == "cancelled" else "I3"
            where = f"{lease.instance} {lease.side} #{lease.attempt}"
            verdict.violate(
                name, f"{lease.rid} {record.state}: held {over_ms / 1000:.1f} s on: {where}"
            )


def _check_proofs(evidence: Evidence, verdict: Verdict) -> None:
    """I3: cleanup has proved both sides of each request, and each lease that it could hear of."""
    for rid, record in evidence.records.items():
        cleaned = record.cleaned
        if record.ended and record.placement is not None and not (cleaned.src and cleaned.dst):
            verdict.violate("I3", f"{rid}: {record.state}, and not proved free: {cleaned}")
    freed: dict[object, Event] = {}
    for event in evidence.events:
        if event.kind is EventKind.LEASE_FREED:
            freed.setdefault(event.data.get("lease"), event)
    for event in evidence.events:
        lease = event.data.get("lease")
        if event.kind is not EventKind.LEASE_ENDED or lease in freed:
            continue
        if any(evidence.struck(event.at_ms - 1_000, event.at_ms + 8_000, "cleanup-0")):
            verdict.remark("leases that ended unheard, while cleanup was away")
        else:
            verdict.violate("I3", f"lease {lease} ended, and no proof of it")
    _check_false_proofs(evidence, freed, verdict)


def _check_false_proofs(
    evidence: Evidence, freed: Mapping[object, Event], verdict: Verdict
) -> None:
    """I3: what is proved free is not held afterwards."""
    for held in evidence.listed:
        proof = freed.get(held.lease)
        if proof is not None and held.last_ms > proof.at_ms + _CLOCK_MS:
            slot = evidence.slots.get(held.instance, "")
            if any(evidence.struck(proof.at_ms - _SILENT_MS, proof.at_ms, slot)):
                # Cleanup takes a silence of five seconds for a death.
                verdict.remark("leases of silent workers, proved free while they were still held")
                continue
            late_s = (held.last_ms - proof.at_ms) / 1000
            how = f"by {proof.data.get('evidence')}, and is still held {late_s:.1f} s later"
            verdict.violate("I3", f"lease {held.lease} is proved free {how}")


def _check_runs(evidence: Evidence, verdict: Verdict) -> None:
    """I4 and I6: an attempt runs once, on one worker of a side, and only if it was assigned."""
    runs: dict[tuple[RequestId, int, EventKind], set[tuple[str, float]]] = defaultdict(set)
    for event in evidence.events:
        if event.rid is None:
            continue
        if event.kind in {EventKind.STAGE_PREFILL, EventKind.STAGE_DECODE}:
            runs[event.rid, event.attempt, event.kind].add((event.instance, event.at_ms))
        record = evidence.records.get(event.rid)
        known = record is None or event.attempt <= record.attempt
        if event.kind is EventKind.STAGE_PREFILL and not known:
            verdict.violate("I4", f"{event.rid}: attempt {event.attempt} is not in the ledger")
    for (rid, attempt, kind), times in runs.items():
        if len(times) > 1:
            verdict.violate("I6", f"{rid} #{attempt}: {kind} {len(times)} times: {sorted(times)}")
