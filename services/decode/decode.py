"""The decode service: reserve, start, stream, replay."""

from __future__ import annotations

from collections.abc import Callable

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.engine import EngineFactory
from libs.lifecycle.tasks import Tasks
from libs.worker import Verb, Worker
from proto.control import Started
from proto.decode import DecodeStart, Replay, Replayed, Reserve
from proto.errors import ErrorCode, PdbusError
from proto.gateway import TokenChunk
from proto.ids import InstanceId
from proto.ledger import Mode
from proto.pairs import ANY_LANE, LanePolicy, PairsRequest
from proto.workers import Role
from services.decode.answering import Answering
from services.decode.slots import Slots

__all__ = ["DecodeService"]


class DecodeService:
    """Streams answers from one engine.

    Args:
        role: `DECODE` fetches KV from prefill workers; `AGGREGATED` computes prompts itself.
        kv_lanes: which lanes KV may take.
        probes: whether the way to each prefill engine is measured when it appears.
    """

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        engines: EngineFactory,
        instance: InstanceId,
        stop: Callable[[], None] | None = None,
        role: Role = Role.DECODE,
        kv_lanes: LanePolicy = ANY_LANE,
        probes: bool = True,
    ) -> None:
        self.worker = Worker(
            bus=bus,
            clock=clock,
            tasks=tasks,
            engines=engines,
            role=role,
            instance=instance,
            lost=ErrorCode.DECODE_LOST,
            stop=stop,
            kv_lanes=kv_lanes,
        )
        self._probes = probes and role is Role.DECODE
        self._slots = Slots(self.worker)
        self.worker.verbs = (
            Verb("reserve", Reserve, self._slots.reserve),
            Verb("start", DecodeStart, self._handle_start),
            Verb("replay", Replay, self._handle_replay),
        )
        if self._probes:
            pairs = Verb("pairs", PairsRequest, self.worker.pairs.answer)
            self.worker.verbs = (*self.worker.verbs, pairs)

    async def start(self) -> None:
        """Begin to load the engine and to take work."""
        await self.worker.start()
        if self._probes:
            await self.worker.pairs.start()

    async def drain(self, grace_s: float) -> None:
        """Finish what runs, refuse the rest, end the engine."""
        await self.worker.drain(grace_s)

    def readiness(self) -> tuple[bool, str]:
        """Return whether work is accepted, and if not, why."""
        return self.worker.readiness()

    def _handle_start(self, start: DecodeStart) -> Started:
        worker = self.worker
        if (start.rid, start.attempt) in worker.attempts:
            return Started(rid=start.rid, attempt=start.attempt, duplicate=True)
        worker.admit(start.rid, start.attempt, start.compat, start.not_after_ms)
        if worker.leases.get(start.rid, start.attempt) is None:
            raise PdbusError(ErrorCode.STALE_ATTEMPT, "there is no reservation any more")
        aggregated = start.mode is Mode.AGGREGATED
        if aggregated != (worker.role is Role.AGGREGATED) or aggregated != (start.source is None):
            raise PdbusError(ErrorCode.INTERNAL, f"{worker.role} cannot run {start.mode}")
        worker.begin(
            start.rid,
            start.attempt,
            start.reply,
            lambda attempt: Answering(worker, attempt, start),
            offset=start.offset,
        )
        return Started(rid=start.rid, attempt=start.attempt)

    def _handle_replay(self, ask: Replay) -> Replayed:
        attempt = self.worker.attempts.get((ask.rid, ask.attempt))
        if attempt is None:
            raise PdbusError(ErrorCode.UNKNOWN_REQUEST, "the attempt is not here any more")
        again = [
            m
            for m in attempt.log
            if not isinstance(m, TokenChunk) or m.finish or m.offset + m.count > ask.offset
        ]
        attempt.listen(ask.reply)
        for message in again:
            self.worker.speaker.tell(ask.reply, message)
        return Replayed(chunks=len(again), first=attempt.offset)
