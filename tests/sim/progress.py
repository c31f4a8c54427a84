"""Where each request stands, in the words of the crash matrix, and who waits for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from proto.host import Job, JobKind
from proto.ids import Incarnation, RequestId
from proto.ledger import Placement, RequestRecord, RequestState
from tests.sim.scenario import State

__all__ = ["Progress", "Standing", "job_of"]

_ORDER = {state: place for place, state in enumerate(State)}


def job_of(job: Job) -> tuple[RequestId, int]:
    """Return the request and the attempt of a job."""
    return RequestId(job.job[:26]), int(job.job[26:])


@dataclass(slots=True)
class Standing:
    """One request of a client."""

    rid: RequestId
    gateway: Incarnation
    """Of the process that owns it."""
    state: State = State.S1
    attempt: int = -1
    placement: Placement | None = None
    cleaned: bool = False


class Progress:
    """Follows the requests of clients; warm-ups of gateways are none."""

    def __init__(self) -> None:
        self.standing: dict[RequestId, Standing] = {}
        self._waiting: dict[State, list[tuple[int, Callable[[Standing], None]]]] = defaultdict(list)
        self._entered: dict[State, set[RequestId]] = defaultdict(set)

    def when(self, state: State, nth: int, call: Callable[[Standing], None]) -> None:
        """Call once, when the nth request enters a state."""
        self._waiting[state].append((nth, call))

    def record(self, record: RequestRecord) -> None:
        """Take in a write of the ledger."""
        standing = self.standing.get(record.rid)
        if standing is None:
            if record.digest == "warm-up":
                return
            standing = Standing(record.rid, record.sink.incarnation)
            self.standing[record.rid] = standing
            self._enter(standing, State.S1)
        standing.gateway = record.sink.incarnation
        standing.cleaned = record.cleaned.src and record.cleaned.dst
        if record.ended:
            # Most requests are clean with their end, and leave nothing that a fault could keep.
            if not standing.cleaned:
                self._enter(standing, State.S6)
        elif record.state is RequestState.ASSIGNED and record.attempt > standing.attempt:
            standing.attempt, standing.placement = record.attempt, record.placement
            self._enter(standing, State.S2, again=True)

    def began(self, job: Job) -> None:
        """A prompt begins to be computed."""
        self._step(job, State.S3)

    def computed(self, job: Job) -> None:
        """A prompt has been computed."""
        if job.kind is JobKind.PREFILL:
            self._step(job, State.S4)

    def first_token(self, job: Job) -> None:
        """The first token of an attempt comes."""
        self._step(job, State.S5)

    def _step(self, job: Job, state: State) -> None:
        rid, attempt = job_of(job)
        standing = self.standing.get(rid)
        if standing is not None and standing.attempt == attempt:
            self._enter(standing, state)

    def _enter(self, standing: Standing, state: State, *, again: bool = False) -> None:
        if not again and _ORDER[state] < _ORDER[standing.state]:
            return
        if standing.state is state is State.S6:
            return
        standing.state = state
        self._entered[state].add(standing.rid)
        count = len(self._entered[state])
        waiting, self._waiting[state] = self._waiting[state], []
        for nth, call in waiting:
            if count > nth:
                call(standing)
            else:
                self._waiting[state].append((nth, call))
