"""What a run leaves behind, for the checks and the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from proto.events import Event, EventKind
from proto.ids import RequestId
from proto.ledger import RequestRecord
from proto.workers import Heartbeat
from tests.chaos.faults import Strike
from tests.chaos.load import Told
from tests.chaos.world.oracle import Right
from tests.chaos.world.watcher import Listed

__all__ = ["ENDS", "Evidence", "Verdict", "Violation", "keep"]

ENDS = (EventKind.REQUEST_DONE, EventKind.REQUEST_FAILED, EventKind.REQUEST_CANCELLED)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass
class Verdict:
    """What the checks found."""

    violations: list[Violation] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    """What is worth a number and breaks no promise."""

    def violate(self, name: str, text: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(name, text))

    def remark(self, name: str) -> None:
        """Count something."""
        self.remarks[name] += 1


@dataclass(frozen=True)
class Evidence:
    """Three sources: clients, ledger and events, engines; and what was done to them."""

    told: Sequence[Told]
    right: Callable[[Told], Right]
    records: Mapping[RequestId, RequestRecord]
    events: Sequence[Event]
    """Stored and heard ones together, each once, in the order of their times."""
    beats: Sequence[Heartbeat]
    """The last word of each living process."""
    listed: Sequence[Listed] = ()
    turned: Sequence[str] = ()
    strikes: Sequence[Strike] = ()
    ready: Sequence[tuple[str, int]] = ()
    """Slot and time at which each incarnation of it became ready."""
    slots: Mapping[str, str] = field(default_factory=dict)
    """Slots of instances."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    late: Sequence[str] = ()
    """Slots that are not ready at rest."""
    tracebacks: Sequence[str] = ()
    deadline_s: float = 20.0

    @cached_property
    def by_rid(self) -> Mapping[RequestId, list[Event]]:
        """The events of each request."""
        found: dict[RequestId, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.rid is not None:
                found[event.rid].append(event)
        return found

    @cached_property
    def _by_trace(self) -> Mapping[str, RequestId]:
        found: dict[str, RequestId] = {}
        for rid, record in self.records.items():
            if record.traceparent:
                found[record.traceparent.split("-")[1]] = rid
        return found

    def rid_of(self, told: Told) -> RequestId | None:
        """Return the request of a submission, if it came to one."""
        return RequestId(told.rid) if told.rid else self._by_trace.get(told.trace)

    def struck(
        self, from_ms: float, until_ms: float, *targets: str, kinds: Sequence[str] = ()
    ) -> Iterator[Strike]:
        """Go through the faults that went on within an interval.

        Args:
            from_ms: Unix time.
            until_ms: Unix time.
            targets: slots; faults of nats-server and of all proxies hit every slot. None: any.
            kinds: the first words of kinds. None: any.
        """
        for strike in self.strikes:
            hit = not targets or strike.target in {*targets, "nats-0", "all"}
            of_kind = not kinds or strike.kind.startswith(tuple(kinds))
            if hit and of_kind and strike.overlaps(from_ms, until_ms):
                yield strike

    def calm(self, from_ms: float, until_ms: float) -> bool:
        """Return whether no fault went on within an interval."""
        return not any(self.struck(from_ms, until_ms))


def keep(evidence: Evidence, folder: Path) -> None:
    """Write the evidence to files, one JSON object a line, for whoever looks into a violation."""
    folder.mkdir(exist_ok=True)
    tables: dict[str, Iterable[object]] = {
        "strikes": evidence.strikes,
        "records": evidence.records.values(),
        "events": evidence.events,
        "told": evidence.told,
        "listed": evidence.listed,
    }
    for name, rows in tables.items():
        lines = (msgspec.json.encode(row) for row in rows)
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines))
