"""Whether a prefill worker has any pair on a lane that its operator requires.

Only decode workers go the ways, and tell of them in heartbeats. These are heard only where a lane
is required: elsewhere nobody would be refused by this worker's rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.bus.api import Subscription
from libs.fleet import DEAD_S, refusals
from libs.worker import Worker
from proto import subjects
from proto.errors import ErrorCode
from proto.ids import Incarnation
from proto.pairs import LaneMode
from proto.workers import CompatCard, Heartbeat, WorkerState

__all__ = ["LaneWatch"]


@dataclass(frozen=True, slots=True)
class _Peer:
    """One decode worker, as it last spoke."""

    beat: Heartbeat
    heard_s: float


class LaneWatch:
    """What decode workers say of their ways to this worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._peers: dict[Incarnation, _Peer] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to listen, if a lane is required."""
        if self._worker.kv_lanes.mode is LaneMode.REQUIRE:
            self._subscription = await self._worker.bus.subscribe(
                subjects.DECODE_HEARTBEATS, Heartbeat, self._hear
            )

    async def close(self) -> None:
        """Stop to listen."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def trouble(self) -> str:
        """Return why no decode worker may fetch from this one, by the example of one, or nothing.

        Workers of another card are no pair, whatever lane leads to them.
        """
        ready = self._worker.ready
        if ready is None or not self._peers:
            return ""
        beats = self._living(ready.card)
        refused = [
            refusal.detail
            for refusal in refusals((self._own(ready.card), *beats))
            if refusal.code is ErrorCode.LANE_REFUSED
        ]
        return min(refused) if refused and len(refused) == len(beats) else ""

    def _hear(self, _subject: str, beat: Heartbeat) -> None:
        if beat.state is WorkerState.READY:
            self._peers[beat.incarnation] = _Peer(beat, self._worker.clock.monotonic())
        else:
            self._peers.pop(beat.incarnation, None)

    def _living(self, card: CompatCard) -> list[Heartbeat]:
        now = self._worker.clock.monotonic()
        for incarnation in [i for i, p in self._peers.items() if now - p.heard_s > DEAD_S]:
            del self._peers[incarnation]
        return [peer.beat for peer in self._peers.values() if peer.beat.card == card]

    def _own(self, card: CompatCard) -> Heartbeat:
        """Return as much of this worker's heartbeat as pairs are judged by."""
        ref = self._worker.ref
        return Heartbeat(
            role=ref.role,
            instance=ref.instance,
            incarnation=ref.incarnation,
            version="",
            sequence=0,
            sent_ms=0,
            state=self._worker.state,
            card=card,
            kv_lanes=self._worker.kv_lanes,
        )
