"""What the gateway knows of the workers, and the warm-up that proves the whole path once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.fleet import SUSPECT_S, Announcer, Fleet, FleetListener
from libs.fleet.announcer import Presence
from libs.lifecycle.tasks import Tasks
from libs.telemetry import attributes, get_logger, names, span
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, new_request_id, tenant_hash
from proto.sampling import SamplingParams
from proto.workers import Heartbeat, Role, WorkerRef, WorkerState
from services.gateway.api import Call, Calls, Readiness, ServedModel
from services.gateway.prompt import PromptIds

__all__ = ["GatewayFleet"]

_WORKERS = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)
_EVERY_S = 0.25
_WARM_UP_S = 60.0
_WARM_UP_IDS = (1, 2, 3, 4, 5, 6, 7, 8)


class _Look(msgspec.Struct, frozen=True):
    """What was seen of the fleet; several things are asked of it for each request."""

    version: int
    """Of the fleet then."""
    until_s: float
    """When the silence of one that is usable makes it suspect."""
    routed: bool
    serving: tuple[Heartbeat, ...]
    """The decodes that have a compatible prefill, and the aggregated workers."""
    models: tuple[ServedModel, ...]


class GatewayFleet:
    """Listens to the fleet, announces the gateway, and decides whether it is ready.

    The gateway is ready once a request of its own has gone the whole way, and for as long as there
    is a set of workers that could serve another.
    """

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        calls: Calls,
        fleet: Fleet,
        instance: InstanceId,
        incarnation: Incarnation,
    ) -> None:
        self.fleet = fleet
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._calls = calls
        self._ref = WorkerRef(role=Role.GATEWAY, instance=instance, incarnation=incarnation)
        self._listener = FleetListener(bus=bus, clock=clock, fleet=self.fleet)
        self._announcer = Announcer(bus=bus, clock=clock, describe=self._describe)
        self._warm = False
        self._why_cold = "no request has gone the whole way yet"
        self._draining = False
        self._last_look: _Look | None = None

    async def start(self) -> None:
        """Begin to listen, to announce and to warm up."""
        await self._listener.start()
        self._tasks.spawn(self._announcer.run(), name="announce")
        self._tasks.spawn(self._keep_warm(), name="warm up")

    async def drain(self) -> None:
        """Take no new request."""
        self._draining = True
        await self._announcer.announce()

    async def close(self) -> None:
        """Stop to listen."""
        await self._listener.close()

    def readiness(self) -> Readiness:
        """Return whether requests can be served now, and if not, why."""
        if self._draining:
            reason = "the gateway is shutting down"
            return Readiness(ok=False, reason=reason, code=ErrorCode.DRAINING)
        missing = self._missing()
        if missing is not None:
            return missing
        if not self._warm:
            return Readiness(ok=False, reason=self._why_cold)
        return Readiness(ok=True)

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models that can be served now."""
        return self._look().models

    def _look(self) -> _Look:
        now_s, version = self._clock.monotonic(), self.fleet.version
        last = self._last_look
        if last is not None and last.version == version and now_s < last.until_s:
            return last
        seen = self.fleet.usable(now_s, *_WORKERS, Role.ROUTER)
        serving = _serving([m.heartbeat for m in seen])
        look = self._last_look = _Look(
            version=version,
            until_s=min((m.heard_s for m in seen), default=now_s) + SUSPECT_S,
            routed=any(m.heartbeat.role is Role.ROUTER for m in seen),
            serving=serving,
            models=_models(serving),
        )
        return look

    def _missing(self) -> Readiness | None:
        if not self._bus.connected:
            reason = "the message bus is not reachable"
            return Readiness(ok=False, reason=reason, code=ErrorCode.BUS_UNAVAILABLE)
        look = self._look()
        if not look.routed:
            return Readiness(ok=False, reason="no router is ready", code=ErrorCode.NO_ROUTER)
        if look.serving:
            return None
        states = sorted(
            f"{m.heartbeat.instance}: {m.heartbeat.reason or m.heartbeat.state}"
            for m in self.fleet.members(*_WORKERS)
        )
        reason = "no usable workers" + (f" ({'; '.join(states)})" if states else "")
        return Readiness(ok=False, reason=reason, code=ErrorCode.NO_WORKER)

    async def _keep_warm(self) -> None:
        while True:
            await self._clock.sleep(_EVERY_S)
            if self._missing() is not None:
                self._warm = False
                self._why_cold = "no request has gone the whole way yet"
            elif not self._warm and not self._draining:
                await self._warm_up()

    async def _warm_up(self) -> None:
        model = self.models()[0].name
        now_ms = self._clock.unix_ms()
        call = Call(
            rid=new_request_id(now_ms, self._clock.entropy),
            tenant=tenant_hash("pdbus-warm-up"),
            model=model,
            prompt=PromptIds(struct.pack(f"<{len(_WARM_UP_IDS)}I", *_WARM_UP_IDS)),
            sampling=SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
            digest="warm-up",
            deadline_ms=now_ms + int(_WARM_UP_S * 1000),
        )
        try:
            with span(names.SPAN_GATEWAY_WARM_UP, {attributes.REQUEST_ID: call.rid}):
                live = await self._calls.open(call)
                async with aclosing(live.deltas()) as deltas:
                    async for _ in deltas:
                        continue
        except PdbusError as error:
            if error.code is ErrorCode.CANCELLED:
                return
            self._why_cold = f"the warm-up failed: {error.code}"
            get_logger().warning("warm-up failed", code=error.code, detail=error.detail)
            return
        self._warm = True
        get_logger().info("warm-up done", model=model)
        self._announcer.hurry()

    def _describe(self) -> Presence:
        ready = self.readiness()
        state = WorkerState.READY if ready.ok else WorkerState.LOADING
        if self._draining:
            state = WorkerState.DRAINING
        return Presence(ref=self._ref, state=state, reason=ready.reason)


def _serving(beats: Sequence[Heartbeat]) -> tuple[Heartbeat, ...]:
    prefills = [beat.card for beat in beats if beat.role is Role.PREFILL]
    decodes = [beat for beat in beats if beat.role is Role.DECODE]
    whole = [beat for beat in beats if beat.role is Role.AGGREGATED]
    return (*(d for d in decodes if d.card is not None and d.card in prefills), *whole)


def _models(serving: Sequence[Heartbeat]) -> tuple[ServedModel, ...]:
    served: dict[str, ServedModel] = {}
    for beat in serving:
        card = beat.card
        if card is None:
            continue
        known = served.get(card.model)
        limit, features = card.context_tokens, frozenset(beat.features)
        if known is not None:
            limit = min(limit, known.context_tokens)
            features &= known.features
        served[card.model] = ServedModel(card.model, limit, card.tokenizer, features)
    return tuple(served.values())
