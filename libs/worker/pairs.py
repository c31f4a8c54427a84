"""The ways from this decode worker to each prefill engine: probed once when one appears.

A way that could not be gone is tried again every few seconds; one that could is left alone, so an
idle fleet costs nothing. Operators may have all ways gone again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from libs.bus.api import Bus, Subscription
from libs.clock.api import Clock
from libs.engine import Engine, EngineDead
from libs.fleet import DEAD_S
from libs.lifecycle.tasks import Tasks
from libs.telemetry import gauge, get_logger, names
from proto import subjects
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane, PeerAddress
from proto.pairs import (
    LaneMode,
    LanePolicy,
    PairProbe,
    PairReport,
    Pairs,
    PairsRequest,
    PairState,
)
from proto.workers import CompatCard, Heartbeat, WorkerState

__all__ = ["PairWatch"]

_AGAIN_S = 2.0
"""Pause before a way that could not be gone is tried again."""
_FRESH_S = 0.5
"""Figures that are younger are good enough for an operator."""
_REFUSALS = frozenset({ErrorCode.VERSION_MISMATCH, ErrorCode.LANE_REFUSED})


@dataclass(slots=True)
class _Peer:
    """One prefill engine."""

    instance: InstanceId
    address: PeerAddress
    heard_s: float
    report: PairReport
    policy: LanePolicy
    """Which lanes KV may take, by the word of its worker."""
    probed_s: float = float("-inf")


class PairWatch:
    """What is known of the ways to prefill engines.

    Args:
        policy: which lanes KV may take.
        changed: called when there is news that others should hear of.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        policy: LanePolicy,
        changed: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._policy = policy
        self._changed = changed
        self._peers: dict[Incarnation, _Peer] = {}
        self._engine: Engine | None = None
        self._card: CompatCard | None = None
        self._turn = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._gauges: dict[tuple[PairState, Lane], Callable[[], None]] = {}

    async def start(self) -> None:
        """Begin to listen for prefill workers."""
        self._subscription = await self._bus.subscribe(
            subjects.PREFILL_HEARTBEATS, Heartbeat, self._hear
        )

    async def close(self) -> None:
        """Stop to listen."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None
        for remove in self._gauges.values():
            remove()

    def use(self, engine: Engine | None, card: CompatCard | None) -> None:
        """Go all ways from this engine from now on; what another one found counts no more."""
        self._engine, self._card = engine, card
        self._peers.clear()

    def reports(self) -> tuple[PairReport, ...]:
        """Return what is known, in short."""
        return tuple(
            msgspec.structs.replace(peer.report, sizes=()) for peer in self._living().values()
        )

    def trouble(self) -> str:
        """Return why no prefill engine may be used by this worker, or nothing."""
        peers = self._living().values()
        wrong = [(peer, side) for peer in peers if (side := self._breached(peer)) is not None]
        if not wrong or len(wrong) < len(peers):
            return ""
        first, policy = wrong[0]
        wanted = ", ".join(policy.lanes)
        why = first.report.detail or "not probed yet"
        return f"{first.instance} is on lane {first.report.lane}, required is {wanted} ({why})"

    def _breached(self, peer: _Peer) -> LanePolicy | None:
        """Return the policy, of either side, that the way to a prefill engine breaches."""
        for policy in (self._policy, peer.policy):
            if policy.mode is LaneMode.REQUIRE and policy.breached_by(peer.report.lane):
                return policy
        return None

    async def answer(self, ask: PairsRequest) -> Pairs:
        """Return all that is known, after all ways were gone again if that is asked for."""
        if ask.probe:
            for incarnation in list(self._living()):
                await self._probe(incarnation)
        return Pairs(reports=tuple(peer.report for peer in self._living().values()))

    def _hear(self, _subject: str, beat: Heartbeat) -> None:
        card = self._card
        if beat.state is not WorkerState.READY or beat.address is None:
            self._peers.pop(beat.incarnation, None)
            return
        if card is None or beat.card is None or beat.card != card:
            # Cards are compared by the router; between such engines no way is ever gone.
            return
        peer = self._peers.get(beat.incarnation)
        if peer is not None:
            peer.heard_s = self._clock.monotonic()
            return
        for former in [i for i, p in self._peers.items() if p.instance == beat.instance]:
            del self._peers[former]
        report = PairReport(peer=beat.incarnation, instance=beat.instance)
        self._peers[beat.incarnation] = _Peer(
            beat.instance, beat.address, self._clock.monotonic(), report, beat.kv_lanes
        )
        self._tasks.spawn(self._get_through(beat.incarnation), name="probe")

    async def _get_through(self, incarnation: Incarnation) -> None:
        while incarnation in self._living():
            await self._probe(incarnation)
            peer = self._peers.get(incarnation)
            if peer is None or peer.report.state is not PairState.FAILED:
                return
            await self._clock.sleep(_AGAIN_S)

    async def _probe(self, incarnation: Incarnation) -> None:
        # One at a time: two probes would measure each other.
        async with self._turn:
            peer, engine = self._peers.get(incarnation), self._engine
            if peer is None or engine is None:
                return
            if self._clock.monotonic() - peer.probed_s < _FRESH_S:
                return
            try:
                found = await engine.probe(peer.address)
            except EngineDead:
                # Its successor goes all ways anew.
                return
            if engine is self._engine:
                self._note(peer, found)

    def _note(self, peer: _Peer, found: PairProbe) -> None:
        before = peer.report
        peer.probed_s = self._clock.monotonic()
        peer.report = PairReport(
            peer=before.peer,
            instance=before.instance,
            state=_state(found),
            lane=found.lane,
            code=found.code,
            detail=found.detail,
            latency_s=found.latency_s,
            bytes_per_s=found.bytes_per_s,
            probed_ms=self._clock.unix_ms(),
            sizes=found.sizes,
        )
        self._measure(peer.report)
        if (before.state, before.lane, before.detail) != (
            peer.report.state,
            found.lane,
            found.detail,
        ):
            _tell(peer.report)
            self._changed()

    def _measure(self, report: PairReport) -> None:
        key = (report.state, report.lane)
        if key in self._gauges:
            return
        state, lane = key
        self._gauges[key] = gauge(
            names.KV_PAIRS,
            lambda: sum((p.report.state, p.report.lane) == key for p in self._peers.values()),
            state=str(state),
            lane=str(lane),
        )
        if report.sizes:
            gauge(names.KV_PAIR_LATENCY, lambda: self._worst_latency(lane), lane=str(lane))
            gauge(names.KV_PAIR_BANDWIDTH, lambda: self._worst_bandwidth(lane), lane=str(lane))

    def _worst_latency(self, lane: Lane) -> float:
        reports = (peer.report for peer in tuple(self._peers.values()))
        return max((r.latency_s for r in reports if r.lane is lane), default=0.0)

    def _worst_bandwidth(self, lane: Lane) -> float:
        reports = (peer.report for peer in tuple(self._peers.values()))
        return min((r.bytes_per_s for r in reports if r.lane is lane and r.sizes), default=0.0)

    def _living(self) -> dict[Incarnation, _Peer]:
        now = self._clock.monotonic()
        for incarnation in [i for i, p in self._peers.items() if now - p.heard_s > DEAD_S]:
            del self._peers[incarnation]
        return self._peers


def _state(found: PairProbe) -> PairState:
    if found.code is None:
        return PairState.UP
    return PairState.REFUSED if found.code in _REFUSALS else PairState.FAILED


def _tell(report: PairReport) -> None:
    log = get_logger()
    tell = log.info if report.state is PairState.UP else log.warning
    tell(
        "pair probed",
        prefill=report.instance,
        state=str(report.state),
        lane=str(report.lane),
        latency_s=round(report.latency_s, 6),
        gigabytes_per_s=round(report.bytes_per_s / 1e9, 3),
        detail=report.detail,
    )
