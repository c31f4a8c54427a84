"""Follows a request that another gateway owns: same stream, from its first token.

The guest never writes the ledger. While it has readers it asks the owner, every few seconds, not to
give the request up; if the owner is gone, it offers to take the request over.
"""

from __future__ import annotations

from collections.abc import Callable

from libs.bus.api import BusError
from libs.fleet import DEAD_S, Health
from libs.telemetry import get_logger
from proto import subjects
from proto.errors import ErrorCode, PdbusError
from proto.gateway import CallState, HoldCall, TokenChunk
from proto.ids import new_nonce
from proto.ledger import Placement, RequestRecord, RequestState
from proto.prefill import ReplyTo
from services.gateway.api import Call, Delta, delta_of
from services.gateway.attempts import Assembler, AttemptLost, Follower
from services.gateway.calls.answer import AnswerLog
from services.gateway.calls.stored import fetch_result
from services.gateway.ports import Ports

__all__ = ["HOLD_S", "Guest"]

HOLD_S = 8.0
"""How long one hold keeps the owner from giving up."""
_HOLD_EVERY_S = 3.0
_POLL_S = 0.05
_RPC_S = 0.5


class Guest:
    """One joined request.

    Args:
        opened: called once there is something to read.
    """

    def __init__(
        self, ports: Ports, call: Call, log: AnswerLog, opened: Callable[[], None]
    ) -> None:
        self.placement: Placement | None = None
        self.last: TokenChunk | None = None
        """The end of the answer, once it was followed to there."""
        self._ports = ports
        self._call = call
        self._log = log
        self._opened = opened
        self._assembler = Assembler()
        self._assembler.resume(sum(len(part.ids) for part in log.parts) // 4)

    @property
    def source(self) -> int:
        """The attempt that gave the newest tokens."""
        return self._assembler.source

    async def follow(self, record: RequestRecord) -> RequestRecord | None:
        """Follow until the request has ended (None), or is ours now (its record).

        Raises:
            PdbusError: how the request failed, or that its result is kept no more.
        """
        holding = self._ports.tasks.spawn(self._hold(record), name="hold")
        try:
            return await self._follow(record)
        finally:
            holding.cancel()

    async def _follow(self, record: RequestRecord) -> RequestRecord | None:
        while not record.ended:
            self._check_deadline()
            if self._lost(record):
                mine = await self._ports.ledger.take_over(record)
                if mine is not None:
                    return mine
            if record.placement is not None:
                await self._listen(record.placement)
            await self._ports.clock.sleep(_POLL_S)
            record = await self._look(record)
        await self._end(record)
        return None

    async def _look(self, record: RequestRecord) -> RequestRecord:
        try:
            return await self._ports.ledger.find(record.rid) or record
        except PdbusError as error:
            get_logger().info("record not read", rid=record.rid, error=str(error))
            return record

    async def _listen(self, placement: Placement) -> None:
        """Take what one attempt gives, until it is complete or lost."""
        ports = self._ports
        self.placement = placement
        self._opened()
        if self._assembler.complete:
            return
        self._assembler.begin(placement.attempt)
        nonce = new_nonce(ports.clock.entropy)
        sink = ports.ledger.sink
        follower = Follower(
            bus=ports.bus,
            clock=ports.clock,
            call=self._call,
            placement=placement,
            assembler=self._assembler,
            reply=ReplyTo(gateway=sink.gateway, incarnation=sink.incarnation, nonce=nonce),
            emit=self._take,
            plain=self._log.add,
            joined=True,
        )
        ports.mailroom.open(nonce, follower.deliver)
        try:
            self.last = await follower.run()
        except AttemptLost as lost:
            # Its owner sees the same and acts; the record will tell.
            get_logger().info("joined attempt lost", rid=self._call.rid, code=lost.code)
        finally:
            ports.mailroom.shut(nonce)

    def _take(self, chunk: TokenChunk) -> None:
        if chunk.count or chunk.text or chunk.details:
            self._log.add(delta_of(chunk))

    async def _end(self, record: RequestRecord) -> None:
        if record.state is RequestState.CANCELLED:
            raise PdbusError(ErrorCode.ALREADY_CANCELLED, "its owner cancelled it")
        if record.state is RequestState.FAILED:
            raise PdbusError(record.error or ErrorCode.INTERNAL, record.detail)
        result = await fetch_result(self._ports.results, record)
        self.placement = result.placement
        self._opened()
        # What the stream has not shown yet comes from the stored answer.
        shown = b"".join(part.ids for part in self._log.parts)
        if not b"".join(part.ids for part in result.parts).startswith(shown):
            # The attempt that was shown here was given up, and another drew anew.
            raise PdbusError(ErrorCode.STREAM_GAP, "the answer went on differently")
        offset = 0
        for part in result.parts:
            if offset >= len(shown):
                self._log.add(Delta(part.ids, part.text, details=part.details))
            offset += len(part.ids)
        self._log.add(Delta(b"", "", result.finish, result.usage))

    def _lost(self, record: RequestRecord) -> bool:
        now, fleet = self._ports.clock.monotonic(), self._ports.fleet
        dead = fleet.health(record.sink.incarnation, now) is Health.DEAD
        return dead and fleet.listening_s(now) >= DEAD_S

    async def _hold(self, record: RequestRecord) -> None:
        sink = record.sink
        subject = subjects.gateway(sink.gateway, sink.incarnation, "hold")
        ask = HoldCall(rid=record.rid)
        while True:
            try:
                await self._ports.bus.request(subject, ask, CallState, timeout_s=_RPC_S)
            except (BusError, PdbusError) as error:
                get_logger().info("owner does not answer", rid=record.rid, error=str(error))
            await self._ports.clock.sleep(_HOLD_EVERY_S)

    def _check_deadline(self) -> None:
        if self._ports.clock.unix_ms() >= self._call.deadline_ms:
            raise PdbusError(ErrorCode.DEADLINE, "the whole answer was not there in time")
