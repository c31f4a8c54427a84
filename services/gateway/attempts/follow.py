"""Follows one attempt: takes its messages, closes gaps, and notices when a side falls silent.

Silence is never taken for loss by itself: the silent side is asked first. A worker that is gone is
known in a moment, because nobody listens on the subject of its incarnation any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from libs.bus.api import Bus, BusDown, NoResponders, RequestTimeout
from libs.clock.api import Clock
from libs.telemetry import count, names
from proto import subjects
from proto.control import Inventory, InventoryRequest
from proto.decode import Replay, Replayed
from proto.errors import ErrorCode, PdbusError
from proto.gateway import AttemptFailed, StillHere, StreamMessage, TokenChunk
from proto.ledger import Placement
from proto.prefill import ReplyTo
from proto.workers import Role, WorkerRef
from services.gateway.api import Call
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.start import AttemptLost

__all__ = ["Follower"]

_SILENT_S = 1.5
_LOST_S = 3.0
_TICK_S = 0.5
_PROBE_S = 0.5
_BUS_S = 4.0
"""How long a running request survives without a bus."""
_ECHO_S = 0.2
"""How long a failed transfer, told by decode, waits for what prefill has to say of the cause."""
_MOST_REPLAYS = 40


class Follower:
    """One attempt as its gateway sees it.

    Chunks are handed on where they arrive, within the call that delivers them: a task that wakes
    for each token would cost more than all else that is done for it. The task that runs the
    follower wakes for what is no plain token.

    Args:
        emit: takes each chunk of the answer, in order and once; must return at once.
        plain: takes those in its place that go on with the answer and do nothing else, which
            nearly all do; what one of them costs is paid for each token.
    """

    def __init__(  # noqa: PLR0913 - the ports and the attempt
        self,
        *,
        bus: Bus,
        clock: Clock,
        call: Call,
        placement: Placement,
        assembler: Assembler,
        reply: ReplyTo,
        emit: Callable[[TokenChunk], None],
        plain: Callable[[TokenChunk], None],
        joined: bool = False,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._call = call
        self._placement = placement
        self._assembler = assembler
        self._emit = emit
        self._plain = plain
        self._attempt = placement.attempt
        self._smooth = False
        """The answer has begun, and nothing is amiss: the next chunk is likely a plain one."""
        self._running = False
        self._last: TokenChunk | None = None
        self._broken: PdbusError | None = None
        self._inbox: deque[StreamMessage] = deque()
        """What came before the follower ran."""
        self._arrived = asyncio.Event()
        now = clock.monotonic()
        self._decode_heard_s = now
        self._prefill_heard_s = now
        self._reply = reply
        # Who joins a running attempt hears nothing from prefill: decode tells of its loss.
        self._prefill_done = joined or placement.prefill is None
        self._joining = joined
        self._attached = not joined
        """It is known where the attempt begins: what was shown fits to it."""
        self.prefill_freed = placement.prefill is None
        """Prefill holds nothing for the attempt any more, as it has said itself."""
        self._gone: dict[Role, float] = {}
        self._failed: AttemptFailed | None = None
        self._failed_s = 0.0
        self._replays = 0

    def deliver(self, message: StreamMessage, now_s: float) -> None:
        """Take a message that came at a monotonic time from the mailroom; returns at once."""
        if not self._running:
            self._inbox.append(message)
            return
        if self._smooth and isinstance(message, TokenChunk):
            # The next tokens of this attempt, and not its last: all that is done for them is here.
            assembler, tokens = self._assembler, len(message.ids) // 4
            if (
                message.offset == assembler.next
                and tokens
                and message.finish is None
                and message.attempt == self._attempt
            ):
                assembler.next += tokens
                self._decode_heard_s = now_s
                self._plain(message)
                return
        try:
            for chunk in self._take(message, now_s):
                self._last = chunk
                self._emit(chunk)
        except PdbusError as error:
            self._broken = error
        amiss = self._broken or self._failed or self._assembler.complete or self._assembler.gap
        begun = self._attached and self._prefill_done and self._assembler.next > 0
        self._smooth = begun and not amiss
        if amiss:
            self._arrived.set()

    async def run(self) -> TokenChunk:
        """Follow until the answer is complete, and return its last chunk.

        Raises:
            AttemptLost: a side failed or is gone.
            PdbusError: deadline, bus_lost, stream_gap, or a failure that no other attempt mends.
        """
        self._running = True
        if self._joining:
            await self._replay()
        while self._inbox:
            self.deliver(self._inbox.popleft(), self._clock.monotonic())
        while True:
            if self._broken is not None:
                raise self._broken
            self._check_failure()
            if self._assembler.complete and self._last is not None:
                return self._last
            if self._assembler.gap:
                await self._replay()
            self._check_deadline()
            await self._check_silence()
            await self._wait()

    async def _wait(self) -> None:
        """Wait for what is no plain token, or until it is time to look at the clocks."""
        left_s = (self._call.deadline_ms - self._clock.unix_ms()) / 1000
        tick_s = _TICK_S if self._failed is None else _ECHO_S
        wait_s = max(0.0, min(tick_s, left_s))
        timer = asyncio.get_running_loop().call_later(wait_s, self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()
        self._arrived.clear()

    def _take(self, message: StreamMessage, now: float) -> list[TokenChunk]:
        if message.attempt != self._placement.attempt:
            count(names.GATEWAY_STALE)
            return []
        if isinstance(message, TokenChunk):
            if not self._attached:
                # The replay that attaches brings it again.
                return []
            if message.offset + len(message.ids) // 4 >= self._assembler.next:
                # An old copy says nothing of whether its sender still lives.
                self._decode_heard_s = now
            # The first token proves that prefill has done its part.
            self._prefill_done = True
            return self._assembler.accept(message)
        if isinstance(message, StillHere):
            self._hear(message, now)
            return []
        self._hear_failure(message, now)
        return []

    def _hear(self, message: StillHere, now: float) -> None:
        if message.role is Role.PREFILL:
            self._prefill_heard_s = now
            self._prefill_done = self._prefill_done or message.final
            self.prefill_freed = self.prefill_freed or message.freed
            return
        self._decode_heard_s = now
        if message.offset > self._assembler.next:
            # Messages of one sender come in order: what is behind us was lost on the way.
            self._decode_heard_s = now - _SILENT_S

    def _hear_failure(self, failed: AttemptFailed, now: float) -> None:
        """Keep a failure; prefill's own word counts more than what decode saw of it."""
        if self._failed is None or failed.role is Role.PREFILL:
            self._failed = failed
            self._failed_s = now

    def _check_failure(self) -> None:
        failed = self._failed
        if failed is None:
            return
        echo = failed.code is ErrorCode.KV_TRANSFER_FAILED and failed.role is not Role.PREFILL
        waited = self._clock.monotonic() - self._failed_s
        if not echo or self._prefill_done or waited >= _ECHO_S:
            raise self._failure(failed)

    def _failure(self, failed: AttemptFailed) -> Exception:
        if failed.code is ErrorCode.CANCELLED and not self._joining:
            return PdbusError(failed.code, failed.detail)
        # Whoever tells of a loss is not always who was lost: decode tells of a dead prefill.
        placement = self._placement
        sides: dict[ErrorCode, tuple[WorkerRef | None, ...]] = {
            ErrorCode.PREFILL_LOST: (placement.prefill,),
            ErrorCode.DECODE_LOST: (placement.decode,),
            ErrorCode.KV_TRANSFER_FAILED: (placement.prefill, placement.decode),
            ErrorCode.TRANSFER_CORRUPT: (placement.prefill, placement.decode),
        }
        teller = placement.prefill if failed.role is Role.PREFILL else placement.decode
        suspects = sides.get(failed.code, (teller,))
        return AttemptLost(failed.code, failed.detail, *(ref for ref in suspects if ref))

    def _check_deadline(self) -> None:
        if self._clock.unix_ms() >= self._call.deadline_ms:
            raise PdbusError(ErrorCode.DEADLINE, "the whole answer was not there in time")

    # Silence

    async def _check_silence(self) -> None:
        now = self._clock.monotonic()
        if not self._bus.connected:
            if self._bus.down_s > _BUS_S:
                raise PdbusError(ErrorCode.BUS_LOST, f"no bus for {self._bus.down_s:.1f} s")
            # Nobody can be heard; the clocks of silence start anew with the connection.
            self._decode_heard_s = self._prefill_heard_s = now
            self._gone.clear()
            return
        if now - self._decode_heard_s >= _SILENT_S:
            await self._replay()
        prefill = self._placement.prefill
        if prefill and not self._prefill_done and now - self._prefill_heard_s >= _SILENT_S:
            await self._probe(prefill)

    async def _replay(self) -> None:
        """Ask decode for all from the expected offset on; also finds out whether it lives."""
        self._replays += 1
        count(names.GATEWAY_REPLAYS)
        if self._replays > _MOST_REPLAYS:
            raise PdbusError(ErrorCode.STREAM_GAP, f"{_MOST_REPLAYS} replays did not close the gap")
        ref = self._placement.decode
        ask = Replay(
            rid=self._call.rid,
            attempt=self._placement.attempt,
            offset=self._assembler.next,
            reply=self._reply,
        )
        try:
            replayed = await self._bus.request(
                subjects.worker(ref, "replay"), ask, Replayed, timeout_s=_PROBE_S
            )
        except PdbusError as refusal:
            raise AttemptLost(ErrorCode.DECODE_LOST, str(refusal), ref) from refusal
        except NoResponders as error:
            self._suspect(ref, self._decode_heard_s, str(error), certain=True)
        except RequestTimeout as error:
            self._suspect(ref, self._decode_heard_s, str(error), certain=False)
        except BusDown:
            return
        else:
            if replayed.first > self._assembler.next:
                raise PdbusError(ErrorCode.STREAM_GAP, "the beginning is kept no more")
            drawn = self._call.sampling.temperature > 0
            if self._joining and drawn and replayed.first < self._assembler.inherited:
                # Another attempt had shown more than this one goes on from: it draws anew.
                raise PdbusError(ErrorCode.STREAM_GAP, "the answer went on differently")
            self._attached = True
            self._gone.pop(ref.role, None)
            self._decode_heard_s = self._clock.monotonic()
            # The replayed chunks are on their way; asking again at once would double them.
            await self._wait()

    async def _probe(self, ref: WorkerRef) -> None:
        try:
            inventory = await self._bus.request(
                subjects.worker(ref, "inventory"),
                InventoryRequest(),
                Inventory,
                timeout_s=_PROBE_S,
            )
        except NoResponders as error:
            self._suspect(ref, self._prefill_heard_s, str(error), certain=True)
        except (RequestTimeout, PdbusError) as error:
            self._suspect(ref, self._prefill_heard_s, str(error), certain=False)
        except BusDown:
            return
        else:
            self._gone.pop(ref.role, None)
            self._prefill_heard_s = self._clock.monotonic()
            mine = (self._call.rid, self._placement.attempt)
            if all((x.rid, x.attempt) != mine for x in inventory.leases):
                # It has ended there; whether the KV arrived is for decode to say.
                self._prefill_done = True

    def _suspect(self, ref: WorkerRef, heard_s: float, detail: str, *, certain: bool) -> None:
        """Take a side for lost: when it is certainly gone twice in a row, or silent for long."""
        now = self._clock.monotonic()
        # Just after a reconnect a living worker may not have subscribed again yet.
        twice = certain and ref.role in self._gone and now - self._gone[ref.role] >= _TICK_S / 2
        if certain:
            self._gone.setdefault(ref.role, now)
        if twice or now - heard_s >= _LOST_S:
            prefill = ref.role is Role.PREFILL
            code = ErrorCode.PREFILL_LOST if prefill else ErrorCode.DECODE_LOST
            raise AttemptLost(code, detail, ref)
