"""One worker: an engine, the leases on its memory, and the verbs that every worker answers.

Prefill and decode bring their own verbs; this class owns what both must do alike: announce,
admit, abort, count leases, and tell the truth when the engine dies. The verbs of one incarnation
are served on subjects that carry its name, so a message to a dead engine never reaches its heir.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial

from libs.bus.api import Bus, Endpoint, Subscription
from libs.bus.patience import until_up
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.engine import Engine, EngineDead, EngineFactory
from libs.fleet import Announcer
from libs.lifecycle.tasks import Tasks
from libs.telemetry import get_logger
from libs.worker.attempt import Attempt, AttemptTable, Work
from libs.worker.controls import Verb, control_verbs
from libs.worker.gateways import GatewayWatch
from libs.worker.keeper import EngineKeeper, EngineWatch
from libs.worker.leases import Lease, LeaseTable
from libs.worker.load import expose, presence_of
from libs.worker.pairs import PairWatch
from libs.worker.speaker import Speaker
from libs.worker.tombstones import Tombstones
from libs.worker.upkeep import Upkeep, contained
from proto import subjects
from proto.control import Aborted, Cancel
from proto.errors import ErrorCode, PdbusError
from proto.events import FINISHED, EventKind
from proto.gateway import StillHere
from proto.host import EngineReady, JobFailed, JobFinished
from proto.ids import NOBODY, InstanceId, RequestId
from proto.pairs import ANY_LANE, LanePolicy
from proto.prefill import ReplyTo
from proto.workers import LeaseSide, Role, WorkerRef, WorkerState

__all__ = ["Worker"]

_STOP_S = 3.0


class Worker:
    """The common part of a prefill or decode service.

    Args:
        role: what the worker announces itself as.
        lost: the code that a client sees when this worker's engine dies.
        stop: asks the process to end in order.
        kv_lanes: which lanes KV may take.
        verbs: served beside `abort`, `release` and `inventory`; given once, before `start`.
    """

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        engines: EngineFactory,
        role: Role,
        instance: InstanceId,
        lost: ErrorCode,
        stop: Callable[[], None] | None = None,
        kv_lanes: LanePolicy = ANY_LANE,
    ) -> None:
        self.clock = clock
        self.bus = bus
        self.tasks = tasks
        self.role = role
        self.instance = instance
        self.chronicle = Chronicle(bus=bus, clock=clock, instance=instance)
        self.speaker = Speaker(
            bus=bus, clock=clock, chronicle=self.chronicle, role=role, tasks=tasks
        )
        self.attempts = AttemptTable()
        self.tombstones = Tombstones()
        self.verbs: Sequence[Verb] = ()
        self.ready: EngineReady | None = None
        self.engine: Engine | None = None
        self.state = WorkerState.LOADING
        self.reason = "the engine is starting"
        self._side = LeaseSide.SRC if role is Role.PREFILL else LeaseSide.DST
        self._lost = lost
        watch = EngineWatch(self._on_loading, self._on_ready, self._on_lost)
        self._keeper = EngineKeeper(clock=clock, engines=engines, watch=watch)
        self._announcer = Announcer(bus=bus, clock=clock, describe=lambda: presence_of(self))
        self._served: list[Subscription] = []
        self._cancels: Subscription | None = None
        self._gateways = GatewayWatch(bus=bus, clock=clock)
        self.upkeep = Upkeep(
            clock=clock, tasks=tasks, beat=self._beat, expire=self._expire, forget=self._forget
        )
        self._stop, self.kv_lanes = stop, kv_lanes
        self.pairs = PairWatch(
            bus=bus, clock=clock, tasks=tasks, policy=kv_lanes, changed=self.hurry
        )
        self.trouble: Callable[[], str] = self.pairs.trouble
        self.leases = LeaseTable(self.ref.incarnation, self._side)
        expose(lambda: self.engine, role)

    # Life

    async def start(self) -> None:
        """Begin to announce, to hear cancels, and to load the engine."""
        self._cancels = await self.bus.subscribe(subjects.ALL_CANCELS, Cancel, self._on_cancel)
        await self._gateways.start()
        self.tasks.spawn(self._announcer.run(), name="announce")
        self.tasks.spawn(self._keeper.run(), name="keep engine")
        self.tasks.spawn(self.upkeep.run(), name="upkeep")

    async def drain(self, grace_s: float) -> None:
        """Refuse new work, let running work end within the grace, then abort it; end the engine."""
        self._become(WorkerState.DRAINING, "the service is shutting down")
        await self._announcer.announce()
        if not await self._settled(grace_s):
            await self._abort_all()
        await self._close_verbs()
        if self._cancels is not None:
            await self._cancels.close()
        await self._gateways.close()
        await self.pairs.close()
        await self._keeper.close()
        # Only now is what was still held free: with the engine.
        self._end_leases(self.leases, "drained")
        await self._announcer.announce()

    def readiness(self) -> tuple[bool, str]:
        """Return whether work is accepted, and if not, why."""
        why = self.reason or self.trouble()
        return self.state is WorkerState.READY and not why, why

    def hurry(self) -> None:
        """Announce now: others wait for what changed."""
        self._announcer.hurry()

    def note(self) -> None:
        """Announce soon that leases changed; now, where somebody waits for room."""
        (self._announcer.hurry if self.leases.crowded else self._announcer.note)()

    @property
    def ref(self) -> WorkerRef:
        """The address of the current incarnation."""
        incarnation = self.engine.incarnation if self.engine else NOBODY
        return WorkerRef(role=self.role, instance=self.instance, incarnation=incarnation)

    def living_engine(self) -> Engine:
        """Return the current engine.

        Raises:
            EngineDead: there is none.
        """
        if self.engine is None:
            raise EngineDead(self.reason)
        return self.engine

    # Admission

    def admit(self, rid: RequestId, attempt: int, compat: str, not_after_ms: int) -> EngineReady:
        """Check what every reserve and start must pass.

        Raises:
            PdbusError: draining, starting, deadline, cancelled, stale_attempt, version_mismatch.
        """
        draining = self.state is WorkerState.DRAINING
        # What was promised before the drain is kept: its slot is there, and its caller has a plan.
        if draining and self.leases.get(rid, attempt) is None:
            raise PdbusError(ErrorCode.DRAINING, self.instance)
        if self.ready is None or not (draining or self.state is WorkerState.READY):
            raise PdbusError(ErrorCode.STARTING, self.reason)
        if self.clock.unix_ms() > not_after_ms:
            raise PdbusError(ErrorCode.DEADLINE, "the message is a late copy")
        if self.tombstones.refuses(rid, attempt):
            raise PdbusError(ErrorCode.CANCELLED, "a cancel came first")
        if self.attempts.newest(rid) > attempt:
            raise PdbusError(ErrorCode.STALE_ATTEMPT, "a newer attempt runs here")
        differing = self.ready.card.mismatches(compat)
        if differing:
            get_logger().error("cards differ", rid=rid, fields=differing, instance=self.instance)
            detail = f"{self.instance} differs in {', '.join(differing)}"
            raise PdbusError(ErrorCode.VERSION_MISMATCH, detail)
        return self.ready

    def end_lease(self, rid: RequestId, attempt: int, why: str) -> None:
        """End a lease, and tell it: its memory is free by local evidence."""
        lease = self.leases.end(rid, attempt)
        if lease is None:
            return
        age = self.clock.monotonic() - lease.born_s
        self.chronicle.fact(
            EventKind.LEASE_ENDED,
            rid,
            attempt,
            side=str(lease.side),
            tokens=lease.tokens,
            why=why,
            age_s=round(age, 3),
            lease=lease.id,
        )
        self.note()

    # Attempts

    def begin(
        self,
        rid: RequestId,
        number: int,
        reply: ReplyTo,
        plan: Callable[[Attempt], Work],
        *,
        offset: int = 0,
    ) -> None:
        """Run an attempt; its lease ends when the work has ended."""
        attempt = Attempt(
            rid,
            number,
            reply,
            self.chronicle.now_ms(),
            self.clock.monotonic(),
            offset=offset,
            produced=offset,
        )
        self.attempts.add(attempt)
        self.upkeep.watch(attempt)
        with contained("attempt"):
            self._run(attempt, plan)
            return
        self.end(attempt)

    def end(self, attempt: Attempt, why: str = "") -> None:
        """End an attempt whose work is done: the engine holds nothing for it any more."""
        attempt.over = True
        self.end_lease(attempt.rid, attempt.number, why or attempt.aborted or FINISHED)
        self.upkeep.release(attempt)

    async def abort(self, rid: RequestId, up_to: int, reason: str) -> Aborted:
        """Stop attempts of a request and refuse those that come later; harmless if unknown."""
        self.tombstones.bury(rid, up_to, self.clock.monotonic())
        for lease in self.leases.of(rid, up_to):
            attempt = self.attempts.get((rid, lease.attempt))
            if attempt is None:
                self.end_lease(rid, lease.attempt, reason or "aborted")
            elif not attempt.over:
                lease.closing = True
                attempt.aborted = attempt.aborted or reason or "aborted"
                await self._abort_job(attempt)
        now = self.clock.monotonic()
        return Aborted(rid=rid, leases=tuple(x.ref(now) for x in self.leases.of(rid, up_to)))

    # The engine's life

    def _on_loading(self, engine: Engine) -> None:
        self.engine = engine
        self.ready = None
        self.pairs.use(None, None)
        self.leases = LeaseTable(engine.incarnation, self._side)
        if self.state is not WorkerState.DRAINING:
            self._become(WorkerState.LOADING, "the engine is starting")

    async def _on_ready(self, engine: Engine, ready: EngineReady) -> None:
        self.ready = ready
        self.pairs.use(engine, ready.card)
        for verb in (*self.verbs, *control_verbs(self)):
            subject = subjects.worker(self.ref, verb.name)
            endpoint = Endpoint(verb.name, subject, verb.request, verb.handler)
            served = await until_up(self.clock, partial(self.bus.serve, endpoint))
            self._served.append(served)
        if self.state is not WorkerState.DRAINING:
            self._become(WorkerState.READY, "")
        self.chronicle.fact(
            EventKind.ENGINE_READY, None, incarnation=engine.incarnation, model=ready.card.model
        )

    async def _on_lost(self, engine: Engine, reason: str) -> None:
        self.ready = None
        if self.state is not WorkerState.DRAINING:
            self._become(WorkerState.FAILED, f"the engine was lost: {reason}")
        self.chronicle.fact(
            EventKind.ENGINE_LOST, None, incarnation=engine.incarnation, reason=reason
        )
        await self._close_verbs()
        self._end_leases(self.leases.unused(self.attempts), "engine gone")
        # Each attempt sees EngineDead by itself and tells its gateway.
        if not await self._settled(_STOP_S):
            get_logger().error("attempts outlive their engine", attempts=len(self.attempts))
        self._end_leases(self.leases, "engine gone")

    def _become(self, state: WorkerState, reason: str) -> None:
        self.state, self.reason = state, reason
        self.hurry()

    async def _close_verbs(self) -> None:
        while self._served:
            await self._served.pop().close()

    # Verbs and cancels

    def begin_drain(self) -> int:
        """Refuse new work and ask the process to end; return the attempts still running.

        Raises:
            PdbusError: nothing here can end the process.
        """
        if self._stop is None:
            raise PdbusError(ErrorCode.INTERNAL, "nothing here can end the process")
        # Announced before the process hears of it, so that nobody places work here meanwhile.
        self._become(WorkerState.DRAINING, "an operator drains it")
        self._stop()
        return len(self.attempts.running())

    def _on_cancel(self, _subject: str, message: Cancel) -> None:
        self.tasks.spawn(self.abort(message.rid, message.attempt, message.reason), name="cancel")

    # Running attempts

    def _run(self, attempt: Attempt, plan: Callable[[Attempt], Work]) -> None:
        work = plan(attempt)
        try:
            outputs = self.living_engine().run(work.job)
        except EngineDead as error:
            self._give_up(attempt, work, error)
            return
        # What is told of the end belongs to the trace of the start.
        run = copy_context().run
        outputs.deliver(
            work.take,
            lambda output: run(self._last, attempt, work, output),
            lambda error: run(self._give_up, attempt, work, error),
            work.take_plain,
        )

    def _last(self, attempt: Attempt, work: Work, output: JobFinished | JobFailed) -> None:
        done = True
        with contained("attempt"):
            done = work.last(output)
        if done:
            self.end(attempt)

    def _give_up(self, attempt: Attempt, work: Work, error: EngineDead) -> None:
        with contained("attempt"):
            work.lost()
            self.speaker.fail(attempt, self._lost, str(error))
        self.end(attempt, "engine gone")

    def _beat(self, attempt: Attempt) -> None:
        if attempt.quiet:
            return
        if attempt.aborted is None and self._gateways.orphaned(attempt, self.clock.monotonic()):
            reason = "no gateway follows any more"
            self.speaker.fail(attempt, self._lost, reason)
            self.tasks.spawn(self.abort(attempt.rid, attempt.number, reason), name="orphan")
        if not attempt.has_news(self.clock.unix_ms()):
            here = StillHere(attempt=attempt.number, role=self.role, offset=attempt.produced)
            self.speaker.say(attempt, here)

    def _expire(self, rid: RequestId, attempt: int) -> None:
        # A reservation whose start does not come dies by its owner's own clock.
        if (rid, attempt) not in self.attempts:
            self.end_lease(rid, attempt, "reservation expired")

    def _forget(self, attempt: Attempt) -> None:
        self.tombstones.bury(attempt.rid, attempt.number, self.clock.monotonic())
        self.attempts.forget(attempt)

    async def _abort_job(self, attempt: Attempt) -> None:
        if self.engine is None:
            return
        try:
            await self.engine.abort(attempt.job)
        except EngineDead:
            # Its memory went with it; the attempt's own run ends the lease.
            get_logger().info("abort of a dead engine", rid=attempt.rid)

    async def _abort_all(self) -> None:
        self._end_leases(self.leases.unused(self.attempts), "drained")
        for attempt in self.attempts.running():
            self.speaker.fail(attempt, ErrorCode.DRAINING, "the worker shut down")
            attempt.aborted = "drained"
            await self._abort_job(attempt)
        if not await self._settled(_STOP_S):
            get_logger().error("attempts outlive their abort")

    def _end_leases(self, leases: Iterable[Lease], why: str) -> None:
        for lease in leases:
            self.end_lease(lease.rid, lease.attempt, why)

    async def _settled(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.attempts.running() or self.leases.unused(self.attempts):
                    await self.clock.sleep(0.02)
                return True
        return False
