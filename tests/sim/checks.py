"""The invariants, as far as this stage of the protocol has them.

Some are checked at each event (`delivered`, `prefill_ran`, ledger writes), some once a second
(`watch`), the rest when the world has come to rest (`final`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from proto.base import decode
from proto.control import Abort, Cancel
from proto.errors import ErrorCode
from proto.host import Job
from proto.ids import RequestId
from proto.ledger import TERMINAL, RequestRecord, RequestState
from tests.sim.client import Ending, Request
from tests.sim.kernel.clock import EPOCH_MS
from tests.sim.ports.network import Link

if TYPE_CHECKING:
    from tests.sim.process import SimProcess
    from tests.sim.world import World

__all__ = ["Checks"]

_TERMINAL_BOUND_S = 10.0
_HEALED_BOUND_S = 20.0
_STOP_BOUND_S = 5.0
_TOLD_BOUND_S = 0.1
_MOST_TASKS = 8
_MOST_SUBSCRIPTIONS = 12
_SEPARATED = frozenset({"crash", "cut", "outage", "pause", "store"})
"""Faults that can part a gateway from the ledger."""
_LEASE_BOUND_S = 10.0


class Checks:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate
        self.records: dict[RequestId, RequestRecord] = {}
        self.ended_s: dict[RequestId, float] = {}
        self.prefills: Counter[tuple[RequestId, int]] = Counter()
        self._told: set[str] = set()
        self._orders: dict[tuple[str, RequestId], list[tuple[float, int]]] = {}
        world.network.on_ending = self._on_ending
        world.ledger.watchers.append(self._on_write)

    # At each event

    def delivered(self, request: Request, before: int) -> None:
        """I1: what a client got so far is the beginning of the right answer."""
        right, _ = request.right
        if request.got[before:] != right[before : len(request.got)]:
            self._once("I1", f"{request.rid}: got {request.got}, the answer is {right}")

    def prefill_ran(self, name: str, job: Job) -> None:
        """I6: one prefill run an attempt, and none for an attempt that nobody made."""
        rid, attempt = RequestId(job.job[:26]), int(job.job[26:])
        self.prefills[rid, attempt] += 1
        self._world.trace.note("prefill", f"{name} computes {rid} {attempt}")
        if self.prefills[rid, attempt] > 1:
            self._violate("I6", f"{rid}: attempt {attempt} is prefilled again, on {name}")
        record = self.records.get(rid)
        if record is None or attempt > record.attempt:
            self._violate("I6", f"{rid}: attempt {attempt} runs and is not in the ledger")

    def job_came(self, link: Link, job: Job) -> None:
        """I7: no attempt starts on a process that was told before that it is over."""
        rid, attempt = RequestId(job.job[:26]), int(job.job[26:])
        now = self._world.loop.time()
        for at_s, up_to in self._orders.get((link.name, rid), []):
            if attempt <= up_to and now > at_s + _TOLD_BOUND_S:
                self._violate("I7", f"{rid}: {link.name} starts {attempt}, stopped at {at_s:.3f}")

    def _on_ending(self, link: Link, order: Abort | Cancel) -> None:
        orders = self._orders.setdefault((link.name, order.rid), [])
        orders.append((self._world.loop.time(), order.attempt))

    def _on_write(self, key: str, before: bytes | None, after: bytes) -> None:
        new = decode(after, RequestRecord)
        rid = new.rid
        self.records[rid] = new
        self._world.trace.note("record", f"{rid} {new.state} {new.attempt} {new.error}")
        if new.ended and rid not in self.ended_s:
            self.ended_s[rid] = self._world.loop.time()
        if before is None:
            return
        old = decode(before, RequestRecord)
        if old.ended and new.state is not old.state:
            self._violate("I2", f"{rid}: {old.state} became {new.state}")
        if new.attempt < old.attempt:
            self._violate("I4", f"{rid}: attempt {old.attempt} became {new.attempt}")
        if new.state is RequestState.STREAMING and new.placement != old.placement:
            self._violate("I4", f"{rid}: a claim changed the placement")
        skipped = new.state is RequestState.DONE and old.state is RequestState.ASSIGNED
        if skipped and not self._world.scenario.faults:
            self._violate("I4", f"{rid}: done without a claim")
        if new.sink != old.sink and new.sink.epoch <= old.sink.epoch:
            self._violate("I2", f"{rid}: the sink changed without a new epoch")

    # Once a second

    def watch(self) -> None:
        """I2 silence, I3 and I7 bounds, as the world goes on."""
        now = self._world.loop.time()
        healed = self._world.scenario.heal_s
        for request in self._world.requests:
            if request.ending is not Ending.NONE or request.domain is None:
                continue
            if not request.domain.alive:
                request.end(self._world, Ending.CUT)
            elif now > max(request.deadline_s, healed) + _TERMINAL_BOUND_S:
                self._once("I2", f"{request.rid}: the client has heard nothing")
        for rid, record in self.records.items():
            if not record.ended:
                late = max(self._deadline(rid) + _TERMINAL_BOUND_S, healed + _HEALED_BOUND_S)
                if now > late:
                    self._once("I2", f"{rid}: still {record.state} {record.attempt}")
        self._watch_engines(now, healed)

    def _watch_engines(self, now: float, healed: float) -> None:
        quiet = min(healed, self._world.scenario.quiet_s)
        for process in self._world.processes.values():
            engine = process.engine()
            if engine is None:
                continue
            for job in engine.jobs:
                rid = RequestId(job[:26])
                ended = self.ended_s.get(rid)
                if ended is None:
                    continue
                if now > max(ended, quiet) + _STOP_BOUND_S:
                    self._once("I7", f"{rid}: {process.name} still runs {job}")
            life = process.life
            service = life.service if life else None
            for rid in service.leases() if service else ():
                own = self._deadline(rid) + _LEASE_BOUND_S
                if life and now > max(own, life.paused_until + _LEASE_BOUND_S):
                    self._remark_once(
                        "I3", f"{rid}: {process.name} holds a lease in spite of {own:.0f}"
                    )
                bound = max(self._deadline(rid) + _LEASE_BOUND_S, healed + _LEASE_BOUND_S)
                if now > bound:
                    self._once("I3", f"{rid}: {process.name} still holds a lease")

    # At rest

    def final(self) -> None:
        """What must be true when nothing goes on any more."""
        for request in self._world.requests:
            self._final_request(request)
        for rid, count in Counter(rid for rid, _ in self.prefills).items():
            if count > self.records[rid].attempt + 1:
                self._violate("I6", f"{rid}: {count} prefills, attempt {self.records[rid].attempt}")
        for process in self._world.processes.values():
            self._final_process(process)
        for rid, record in self.records.items():
            cleaned = record.cleaned
            if record.placement is not None and not (cleaned.src and cleaned.dst):
                self._world.trace.remark("cleaned", f"{rid}: {record.state} {cleaned}")

    def _final_process(self, process: SimProcess) -> None:
        engine = process.engine()
        if engine is not None and (engine.memory.used or engine.jobs):
            self._violate("I3", f"{process.name}: {engine.memory.used} pages, jobs {engine.jobs}")
        service = process.life.service if process.life else None
        if process.life is None or service is None or not service.ready():
            self._violate("ready", f"{process.name} does not serve again")
            return
        for name, size in service.tables().items():
            if size:
                self._violate("I11", f"{process.name}: {size} {name} at rest")
        tasks = self._world.loop.live_tasks(process.life.domain)
        if len(tasks) > _MOST_TASKS:
            self._violate("I11", f"{process.name}: {len(tasks)} tasks at rest: {tasks}")
        if process.life.bus.subscriptions > _MOST_SUBSCRIPTIONS:
            self._violate("I11", f"{process.name}: {process.life.bus.subscriptions} subscriptions")

    def graves(self, fresh: int) -> None:
        """I11: only the tombstones of the last few requests are left."""
        for process in self._world.processes.values():
            service = process.life.service if process.life else None
            if service is not None and service.graves() > fresh:
                self._violate("I11", f"{process.name}: {service.graves()} tombstones too old")

    def _final_request(self, request: Request) -> None:
        record = self.records.get(request.rid)
        if request.code is ErrorCode.INTERNAL:
            self._violate("internal", f"{request.rid}: {request.detail}")
        if request.ending is Ending.ANSWERED:
            self._final_answer(request)
        if record is None:
            if request.opened:
                self._violate("I2", f"{request.rid}: opened without a record")
            return
        right, _ = request.right
        usage = record.usage
        if record.state is RequestState.DONE and (
            usage is None or usage.completion_tokens != len(right)
        ):
            self._violate("I1", f"{request.rid}: DONE with {usage} for {len(right)}")
        wrong = _disagree(request, record)
        if wrong:
            self._violate("I2", f"{request.rid}: {wrong}")
        elif record.state is RequestState.FAILED and record.error is not request.code:
            self._compare_codes(request, record)

    def _final_answer(self, request: Request) -> None:
        right, finish = request.right
        if request.got != right or request.finish is not finish:
            self._violate("I1", f"{request.rid}: a complete answer that is not the right one")
        if request.usage is None or request.usage.completion_tokens != len(right):
            self._violate("I1", f"{request.rid}: {request.usage} for {len(right)} tokens")

    def _compare_codes(self, request: Request, record: RequestRecord) -> None:
        """A gateway that could not reach the ledger leaves the ending to cleanup, with its code."""
        if request.ending is not Ending.FAILED:
            return
        text = f"{request.rid}: failed with {request.code}, and the record says {record.error}"
        if _SEPARATED & {fault.kind for fault in self._world.scenario.faults}:
            self._world.trace.remark("code", text)
        else:
            self._violate("I2", text)

    def _deadline(self, rid: RequestId) -> float:
        record = self.records.get(rid)
        return (record.deadline_ms - EPOCH_MS) / 1000 if record else 0.0

    def _remark_once(self, name: str, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._world.trace.remark(name, text)

    def _once(self, name: str, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._violate(name, text)


def _disagree(request: Request, record: RequestRecord) -> str | None:
    """Return how the client's end and the record's differ, or None."""
    state, ending = record.state, request.ending
    if state not in TERMINAL:
        return f"ends as {state}"
    if ending is Ending.ANSWERED and state is not RequestState.DONE:
        return f"answered, and the record says {state} {record.error}"
    if ending is Ending.FAILED:
        if state is RequestState.DONE:
            return f"failed with {request.code}, and the record says done"
        told = {ErrorCode.CANCELLED, ErrorCode.DRAINING}
        if state is RequestState.CANCELLED and request.code not in told:
            return f"failed with {request.code}, and the record says cancelled"
    if ending is Ending.REFUSED:
        return f"refused, and there is a record: {state}"
    return None
