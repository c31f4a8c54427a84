"""The ledger: who writes what, and when (I2, I4, I12)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from proto.base import decode
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.ids import Incarnation, JobId, RequestId, job_id
from proto.ledger import RequestRecord, RequestState
from proto.workers import WorkerRef
from services.gateway.api import Recover
from tests.sim.kernel.clock import EPOCH_MS
from tests.sim.ports.network import LinkState

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Records"]

_TERMINAL_BOUND_S = 10.0
_HEALED_BOUND_S = 20.0
_RETRIES, _MIGRATIONS = 1, 2
"""Further attempts of a request before its first token, and after it, whoever owns it."""
_ALWAYS, _SHARE, _MINUTE_S = 3, 0.1, 48.0
"""What one gateway may spend in a minute: so many further attempts, or such a part."""
_CLOCKS_S = 1.5
"""How far two clocks may be apart in a world without clock faults, and the age of a view."""
_DEAD_S = 5.0
_STORY = {
    EventKind.REQUEST_DONE: RequestState.DONE,
    EventKind.REQUEST_FAILED: RequestState.FAILED,
    EventKind.REQUEST_CANCELLED: RequestState.CANCELLED,
}


class Records:
    """Follows every write of the ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate
        self.now: dict[RequestId, RequestRecord] = {}
        self.ended_s: dict[RequestId, float] = {}
        self.past_s: dict[tuple[RequestId, int], float] = {}
        """Since when an attempt is over for the ledger."""
        self._accepted: dict[Incarnation, list[float]] = defaultdict(list)
        self._further: dict[Incarnation, list[float]] = defaultdict(list)
        """When each gateway accepted a request, and when it made a further attempt."""

    def deadline_s(self, rid: RequestId) -> float:
        """Return the deadline of a request in virtual time; 0 if it is unknown."""
        record = self.now.get(rid)
        return (record.deadline_ms - EPOCH_MS) / 1000 if record else 0.0

    def written(self, who: str, key: str, before: bytes | None, after: bytes) -> None:
        """Take in a write."""
        new = decode(after, RequestRecord)
        rid = new.rid
        now = self._world.loop.time()
        self.now[rid] = new
        self._world.trace.note("record", f"{rid} {new.state} {new.attempt} {new.error}")
        if before is None:
            self._accepted[new.sink.incarnation].append(now)
        else:
            old = decode(before, RequestRecord)
            self._changed(who, old, new)
            if new.attempt > old.attempt:
                self.past_s.setdefault((rid, old.attempt), now)
        if new.ended and rid not in self.ended_s:
            self.ended_s[rid] = now
            self.past_s.setdefault((rid, new.attempt), now)
        self._world.progress.record(new)

    def _changed(self, who: str, old: RequestRecord, new: RequestRecord) -> None:
        rid = new.rid
        if old.ended and new.state is not old.state:
            self._violate("I2", f"{rid}: {old.state} became {new.state}")
        if new.ended and not old.ended:
            self._check_ender(who, old, new)
        if new.attempt < old.attempt:
            self._violate("I4", f"{rid}: attempt {old.attempt} became {new.attempt}")
        if new.attempt > old.attempt:
            self._check_attempt(new)
        if new.attempt == old.attempt >= 0 and new.placement != old.placement:
            self._violate("I4", f"{rid}: attempt {old.attempt} has two places")
        skipped = new.state is RequestState.DONE and old.state is RequestState.ASSIGNED
        if skipped and self._world.scenario.calm:
            self._violate("I4", f"{rid}: done without a claim")
        if new.sink != old.sink:
            self._check_take_over(old, new)
        if new.tenant != old.tenant:
            self._violate("I10", f"{rid}: the tenant changed")
        if new.cleaned != old.cleaned:
            self._check_cleaned(old, new)

    def _check_ender(self, who: str, old: RequestRecord, new: RequestRecord) -> None:
        """I2: its gateway ends a request; cleanup only where that cannot; operators cancel."""
        name = who.partition(".")[0]
        role = self._world.scenario.names.get(name, name)
        if role == "gateway":
            if self._world.names.get(old.sink.incarnation) != name:
                self._violate("I2", f"{new.rid}: ended by {who}, which does not own it")
        elif role == "cleanup":
            late = self._world.loop.time() - self.deadline_s(new.rid)
            alive = self._reachable(old.sink.incarnation)
            if alive and late < -_CLOCKS_S:
                self._violate("I2", f"{new.rid}: cleanup ends it, and its gateway lives")
        elif role != "operator" or new.state is not RequestState.CANCELLED:
            self._violate("I2", f"{new.rid}: ended as {new.state} by {who}")

    def _check_take_over(self, old: RequestRecord, new: RequestRecord) -> None:
        if new.sink.epoch <= old.sink.epoch:
            self._violate("I2", f"{new.rid}: the sink changed without a new epoch")
        if self._reachable(old.sink.incarnation):
            self._violate("I2", f"{new.rid}: taken over, and its gateway lives")

    def _reachable(self, incarnation: Incarnation) -> bool:
        """Return whether nothing has parted a gateway from the others for a while."""
        name = self._world.names.get(incarnation)
        process = self._world.processes.get(name or "")
        life = process.life if process else None
        now = self._world.loop.time()
        if life is None or life.incarnation != incarnation or life.stopping:
            return False
        if life.domain.paused or now < life.paused_until + _DEAD_S:
            return False
        if self._world.faulted["loss"] or self._world.faulted["outage"]:
            return False
        return life.bus.link.state is LinkState.UP and now > life.bus.link.parted_s + _DEAD_S

    def _check_attempt(self, new: RequestRecord) -> None:
        """I12: further attempts stay within what one request and one gateway may spend."""
        moves = any(
            ask.plan.recover is not Recover.NEVER
            for ask in self._world.asks
            if ask.digest == new.digest
        )
        most = _RETRIES + (_MIGRATIONS if moves else 0)
        if new.attempt > most:
            self._violate("I12", f"{new.rid}: attempt {new.attempt} of at most {most}")
        if new.attempt == 0:
            return
        gateway, now = new.sink.incarnation, self._world.loop.time()
        further = self._further[gateway]
        further.append(now)
        # A little less than a minute: the budget is spent before the attempt is placed.
        spent = sum(now - at < _MINUTE_S for at in further)
        accepted = sum(now - at < _MINUTE_S for at in self._accepted[gateway])
        if spent > max(_ALWAYS, _SHARE * accepted):
            self._violate("I12", f"{new.rid}: {spent} further attempts of {new.sink.gateway}")

    def _check_cleaned(self, old: RequestRecord, new: RequestRecord) -> None:
        """I3: a side is marked as clean when its owner holds nothing for the request."""
        placement = new.placement
        if placement is None:
            return
        job = job_id(new.rid, new.attempt)
        if new.cleaned.src and not old.cleaned.src and placement.prefill is not None:
            self._check_free(placement.prefill, job)
        if new.cleaned.dst and not old.cleaned.dst:
            self._check_free(placement.decode, job)

    def _check_free(self, owner: WorkerRef, job: JobId) -> None:
        process = self._world.processes.get(self._world.names.get(owner.incarnation, ""))
        engine = process.engine() if process else None
        if engine is None or engine.incarnation != owner.incarnation or process is None:
            return
        # A process that stands still or is cut off counts as gone until it is heard again.
        parted = any(self._world.faulted[kind] for kind in ("cut", "pause", "outage", "loss"))
        if job in engine.jobs and not parted:
            self._violate("I3", f"{job}: marked as clean, and {process.name} runs it")

    # Once a second

    def watch(self) -> None:
        """I2: no request stays open."""
        now, healed = self._world.loop.time(), self._world.scenario.heal_s
        for rid, record in self.now.items():
            if record.ended:
                continue
            late = max(self.deadline_s(rid) + _TERMINAL_BOUND_S, healed + _HEALED_BOUND_S)
            if now > late:
                self._world.once("I2", f"{rid}: still {record.state} {record.attempt}")

    # At rest

    def final(self) -> None:
        """The story agrees with the ledger; all that ended is proved clean."""
        for event in self._world.network.events:
            told = _STORY.get(event.kind)
            record = self.now.get(event.rid) if event.rid else None
            if told is None or record is None or record.state is told:
                continue
            text = f"{record.rid}: the story says {told}, and the record {record.state}"
            self._world.unless_parted("I2", text)
        for rid, record in self.now.items():
            cleaned = record.cleaned
            if record.ended and record.placement and not (cleaned.src and cleaned.dst):
                self._violate("cleaned", f"{rid}: {record.state} {cleaned}")
            if record.error is ErrorCode.INTERNAL:
                self._violate("internal", f"{rid}: {record.detail}")
