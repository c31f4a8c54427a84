"""The figures of a run: counts, recovery times, latencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proto.events import Event, EventKind
from tests.chaos.faults import Strike
from tests.chaos.judge.clients import outcome_of
from tests.chaos.judge.engines import prefill_tokens
from tests.chaos.judge.evidence import ENDS, Evidence, Verdict
from tests.chaos.load import Told

__all__ = ["Figures", "Spread", "figures_of", "freed_after_ms"]

PHASES = ("queued", "placed", "prefill", "transfer", "streaming", "ended")


@dataclass(frozen=True, slots=True)
class Spread:
    """Some durations in seconds."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of some values, None if there are none."""
        found = sorted(values)
        if not found:
            return None
        last = len(found) - 1
        p50, p99 = found[last // 2], found[min(last, round(0.99 * last))]
        return cls(len(found), round(p50, 3), round(p99, 3), round(found[-1], 3))

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, most {self.most:.2f} s ({self.count})"


@dataclass
class Figures:
    """What the report shows, and what `--json` writes."""

    submissions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hit: dict[str, Counter[str]] = field(default_factory=dict)
    """Requests in each phase at the moment of each kind of fault."""
    ready: dict[str, Spread] = field(default_factory=dict)
    """Kill to ready again."""
    used: dict[str, Spread] = field(default_factory=dict)
    """Kill to the first success through the new process."""
    cancels: dict[str, Spread] = field(default_factory=dict)
    """Client gone to freed on both sides."""
    keys: int = 0
    prefill_computed: int = 0
    prefill_submitted: int = 0
    events: int = 0
    remarks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return them as plain values."""
        return msgspec.to_builtins(self, str_keys=True)


def figures_of(evidence: Evidence, verdict: Verdict) -> Figures:
    """Count."""
    figures = Figures(submissions=len(evidence.told), events=len(evidence.events))
    for told in evidence.told:
        figures.outcomes[outcome_of(told)] += 1
    for record in evidence.records.values():
        figures.records[f"{record.state} {record.error or ''}".strip()] += 1
        figures.attempts[record.attempt + 1] += 1
    figures.keys = len({told.ask.key for told in evidence.told if told.ask.key})
    figures.prefill_computed, figures.prefill_submitted = prefill_tokens(evidence)
    figures.remarks = verdict.remarks
    figures.violations = [str(violation) for violation in verdict.violations]
    figures.cancels = _cancels(evidence)
    lives = [_life(events) for events in evidence.by_rid.values()]
    for strike in evidence.strikes:
        figures.faults[strike.kind] += 1
        hit = figures.hit.setdefault(strike.kind, Counter())
        hit.update(phase for life in lives if (phase := _phase(life, strike.from_ms)))
    _recoveries(evidence, figures)
    return figures


# Cancels


def freed_after_ms(told: Told, events: Sequence[Event]) -> float | None:
    """Return how long after its client had left the last lease of a request ended.

    None if nothing was held for it any more at that moment.
    """
    ended = [e.at_ms for e in events if e.kind is EventKind.LEASE_ENDED]
    if told.left_ms is None or not ended or max(ended) < told.left_ms:
        return None
    return max(ended) - told.left_ms


def _cancels(evidence: Evidence) -> dict[str, Spread]:
    found: dict[str, list[float]] = defaultdict(list)
    for told in evidence.told:
        rid = evidence.rid_of(told)
        if told.left_ms is None or told.ask.key is not None or rid is None:
            continue
        late_ms = freed_after_ms(told, evidence.by_rid.get(rid, ()))
        if late_ms is None:
            continue
        phase = "after the first token" if told.saw_token else "before the first token"
        found[phase].append(late_ms / 1000)
        if evidence.calm(told.left_ms - 1_000, told.left_ms + 2_000):
            found[f"{phase}, no fault near"].append(late_ms / 1000)
    return {name: spread for name, values in found.items() if (spread := Spread.of(values))}


# Phases


@dataclass(slots=True)
class _Life:
    accepted: float | None = None
    assigned: float | None = None
    computing: float | None = None
    computed: float | None = None
    streaming: float | None = None
    ended: float | None = None
    freed: float | None = None


def _life(events: Sequence[Event]) -> _Life:
    life = _Life()
    for event in events:
        match event.kind:
            case EventKind.REQUEST_ACCEPTED:
                life.accepted = event.at_ms
            case EventKind.REQUEST_ASSIGNED:
                life.assigned = life.assigned or event.at_ms
            case EventKind.STAGE_PREFILL:
                life.computing, life.computed = event.start_ms, event.at_ms
            case EventKind.REQUEST_STREAMING:
                life.streaming = life.streaming or event.at_ms
            case EventKind.LEASE_FREED:
                life.freed = life.freed or event.at_ms
            case kind if kind in ENDS:
                life.ended = life.ended or event.at_ms
            case _:
                pass
    return life


def _phase(life: _Life, at_ms: float) -> str | None:
    """Return in which phase a request was; `placed` also where the stages are not known."""
    late = float("inf")
    if life.accepted is None or at_ms < life.accepted:
        return None
    if at_ms >= (life.ended or late):
        return "ended" if at_ms < (life.freed or 0) else None
    if at_ms >= (life.streaming or late):
        return "streaming"
    if at_ms >= (life.computed or late):
        return "transfer"
    if at_ms >= (life.computing or late):
        return "prefill"
    return "placed" if at_ms >= (life.assigned or late) else "queued"


# Recovery


def _recoveries(evidence: Evidence, figures: Figures) -> None:
    ready: dict[str, list[float]] = defaultdict(list)
    used: dict[str, list[float]] = defaultdict(list)
    for strike in evidence.strikes:
        if not strike.is_kill:
            continue
        at_ms = _ready_ms(evidence, strike)
        if at_ms is None:
            continue
        ready[strike.kind].append((at_ms - strike.from_ms) / 1000)
        firsts = [
            told.ended_ms
            for told in evidence.told
            if told.reply.claims_completeness
            and told.sent_ms >= at_ms
            and _through(evidence, told, strike.target)
        ]
        if firsts:
            used[strike.kind].append((min(firsts) - strike.from_ms) / 1000)
    figures.ready = {name: s for name, values in ready.items() if (s := Spread.of(values))}
    figures.used = {name: s for name, values in used.items() if (s := Spread.of(values))}


def _ready_ms(evidence: Evidence, strike: Strike) -> float | None:
    if strike.target == "nats-0":
        return strike.until_ms
    times = [ms for slot, ms in evidence.ready if slot == strike.target and ms > strike.from_ms]
    return min(times, default=None)


def _through(evidence: Evidence, told: Told, slot: str) -> bool:
    role = slot.partition("-")[0]
    if role == "gateway":
        return slot == f"gateway-{told.manner.gateway}"
    if role in {"prefill", "decode"}:
        return evidence.slots.get(told.reply.headers.get(f"x-pdbus-{role}", "")) == slot
    return True
