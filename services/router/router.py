"""The router service: place attempts, grant claims."""

from __future__ import annotations

from functools import partial

from libs.bus.api import Bus, Endpoint, Store, Subscription
from libs.bus.patience import until_up
from libs.clock.api import Clock
from libs.fleet import Announcer, Fleet, FleetListener, Member
from libs.fleet.announcer import Presence
from libs.lifecycle.tasks import Tasks
from proto import subjects
from proto.control import Cancel
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId
from proto.ledger import RequestRecord
from proto.router import Claim, Claimed, Place, Placed
from proto.workers import Role, WorkerRef, WorkerState
from services.router.candidates import Pending
from services.router.claims import Claims
from services.router.placing import Placing
from services.router.policies import POLICIES
from services.router.refusals import Refusals
from services.router.turns import Turns

__all__ = ["RouterService"]


class RouterService:
    """Holds soft state only: it is rebuilt from heartbeats within a second of a start."""

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        clock: Clock,
        tasks: Tasks,
        instance: InstanceId,
        incarnation: Incarnation,
        policy: str = "least_loaded",
    ) -> None:
        self.fleet = Fleet()
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._ref = WorkerRef(role=Role.ROUTER, instance=instance, incarnation=incarnation)
        self._state = WorkerState.LOADING
        self._pending = Pending()
        self._refusals = Refusals(self.fleet)
        self._turns = Turns(clock)
        self._listener = FleetListener(
            bus=bus, clock=clock, fleet=self.fleet, on_heard=self._on_heard
        )
        self._announcer = Announcer(bus=bus, clock=clock, describe=self._describe)
        self._claims = Claims(store)
        self._placing = Placing(
            bus=bus,
            store=store,
            clock=clock,
            fleet=self.fleet,
            pending=self._pending,
            turns=self._turns,
            policy=POLICIES[policy],
            assigned=self._claims.expect,
        )
        self._served: list[Subscription] = []
        self._cancels: Subscription | None = None

    async def start(self) -> None:
        """Hear the fleet for one period, then answer."""
        await self._listener.start()
        self._cancels = await self._bus.subscribe(subjects.ALL_CANCELS, Cancel, self._on_cancel)
        self._tasks.spawn(self._announcer.run(), name="announce")
        self._tasks.spawn(self._open(), name="open")

    async def drain(self, grace_s: float) -> None:
        """Refuse new questions; those being answered end within the grace."""
        self._state = WorkerState.DRAINING
        await self._announcer.announce()
        self._turns.wake()
        for subscription in self._served:
            await subscription.close()
        if self._cancels is not None:
            await self._cancels.close()
        await self._listener.close()

    def readiness(self) -> tuple[bool, str]:
        """Return whether questions are answered, and if not, or only with refusals, why."""
        ready = self._state is WorkerState.READY
        return ready, self._refusals.trouble() if ready else f"the router is {self._state}"

    async def _open(self) -> None:
        # A router that answers before it has heard the fleet would refuse what could be served.
        if not list(self.fleet.members(Role.DECODE, Role.AGGREGATED)):
            await self._clock.sleep(1.1)
        for endpoint in (
            Endpoint("place", subjects.ROUTER_PLACE, Place, self._place, subjects.GROUP_ROUTER),
            Endpoint("claim", subjects.ROUTER_CLAIM, Claim, self._claim, subjects.GROUP_ROUTER),
        ):
            served = await until_up(self._clock, partial(self._bus.serve, endpoint))
            self._served.append(served)
        self._state = WorkerState.READY
        self._announcer.hurry()

    async def _place(self, ask: Place) -> Placed:
        if self._state is not WorkerState.READY:
            raise PdbusError(ErrorCode.NO_ROUTER, f"the router is {self._state}")
        return await self._placing.place(ask)

    async def _claim(self, ask: Claim) -> Claimed:
        return await self._claims.grant(ask)

    def _on_cancel(self, _subject: str, message: Cancel) -> None:
        self._placing.cancel(message.rid, message.attempt)

    def _on_heard(self, member: Member) -> None:
        self._pending.heard(member.heartbeat.incarnation)
        self._refusals.heard(member)
        if member.heartbeat.role in {Role.DECODE, Role.AGGREGATED, Role.PREFILL}:
            self._turns.wake()

    def _describe(self) -> Presence:
        return Presence(ref=self._ref, state=self._state, reason=self._refusals.trouble())
