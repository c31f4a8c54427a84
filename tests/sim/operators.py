"""An operator with a connection of their own: cancels requests, drains workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from libs.bus.api import BusError, NoResponders, RequestTimeout, Store
from proto import subjects
from proto.control import Cancel, Drain, Draining
from proto.errors import ErrorCode, PdbusError
from proto.gateway import CallState, CancelCall
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from proto.workers import Role, WorkerRef
from tests.sim.kernel import Domain, SimClock
from tests.sim.ports import SimBus, SimStore

if TYPE_CHECKING:
    from tests.sim.process import SimProcess
    from tests.sim.world import World

__all__ = ["Operator"]

_RPC_S = 1.0
_TRIES = 5


class Operator:
    """What the command line does, on the simulated bus."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._domain = Domain("operator")
        self._bus = SimBus(world.network, "operator", self._domain)
        self._clock = SimClock(world.loop, 0)
        self._store: Store[RequestRecord] = SimStore(world.ledger, self._bus, RequestRecord)
        self.cancelled: dict[RequestId, float] = {}
        """When each request was first asked to be cancelled."""

    def cancel(self, rid: RequestId, *, directly: bool) -> None:
        """Cancel a request: through its gateway, or, if that is not there, in the ledger."""
        self.cancelled.setdefault(rid, self._world.loop.time())
        work = self._cancel(rid, directly=directly)
        self._world.loop.spawn(self._domain, work, name="operator cancels")

    def drain(self, process: SimProcess) -> None:
        """Drain a worker through its verb."""
        self._world.loop.spawn(self._domain, self._drain(process), name="operator drains")

    async def _cancel(self, rid: RequestId, *, directly: bool) -> None:
        try:
            found = await self._store.get(rid)
            if found is None or found.value.ended:
                return
            if directly or not await self._ask_gateway(found.value):
                await self._end(rid)
        except (BusError, PdbusError) as error:
            self._world.trace.note("operator", f"{rid} not cancelled: {error!r}")

    async def _ask_gateway(self, record: RequestRecord) -> bool:
        sink = record.sink
        subject = subjects.gateway(sink.gateway, sink.incarnation, "cancel")
        ask = CancelCall(rid=record.rid, reason="an operator")
        try:
            state = await self._bus.request(subject, ask, CallState, timeout_s=_RPC_S)
        except (NoResponders, RequestTimeout):
            return False
        self._world.trace.note("operator", f"{record.rid} gateway says {state.running}")
        return True

    async def _end(self, rid: RequestId) -> None:
        """Write the end itself, by compare-and-set, and tell the workers."""
        for _ in range(_TRIES):
            found = await self._store.get(rid)
            if found is None or found.value.ended:
                return
            ended = msgspec.structs.replace(
                found.value,
                state=RequestState.CANCELLED,
                error=ErrorCode.CANCELLED,
                detail="an operator",
                ended_ms=self._clock.unix_ms(),
            )
            try:
                await self._store.update(rid, ended, found.revision)
            except BusError:
                continue
            cancel = Cancel(rid=rid, attempt=ended.attempt, reason="an operator")
            await self._bus.publish(subjects.cancel(ended.tenant, rid), cancel)
            return

    async def _drain(self, process: SimProcess) -> None:
        life = process.life
        engine = process.engine()
        if life is None or engine is None:
            return
        ref = WorkerRef(
            role=Role(life.role), instance=life.instance, incarnation=engine.incarnation
        )
        subject = subjects.worker(ref, "drain")
        try:
            drains = await self._bus.request(subject, Drain(), Draining, timeout_s=_RPC_S)
        except (BusError, PdbusError) as error:
            self._world.trace.note("operator", f"{process.name} not drained: {error!r}")
        else:
            self._world.trace.note("operator", f"{process.name} drains {drains.running}")
