"""From calls to their answer: in one piece, or as a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

import msgspec
from starlette.types import Scope, Send

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from services.gateway.api import Calls, Delta, Live, Part
from services.gateway.edge import BODY, EventStream, Exchange, send_json
from services.gateway.edge.reply import Header
from services.gateway.openai.answers.asked import Asked
from services.gateway.openai.answers.fan import Lives, open_all
from services.gateway.openai.answers.said import UNFINISHED, Said, total_usage
from services.gateway.openai.frames import Frames, Head
from services.gateway.openai.tally import Stage, Tally

__all__ = ["Giving"]

_BATCH_BYTES = 65_536


class Giving(msgspec.Struct, eq=False):
    """One answer on its way."""

    asked: Asked
    calls: Calls
    exchange: Exchange
    tally: Tally
    clock: Clock
    at_once: int
    """Most calls that run at a time."""
    expose_placement: bool
    """Whether the answer's head names the workers."""
    live: Live | None = None
    frames: Frames | None = None
    _ends: dict[int, tuple[FinishReason, Usage]] = msgspec.field(
        default_factory=dict[int, tuple[FinishReason, Usage]]
    )

    async def whole(self, send: Send) -> None:
        """Give the answer in one piece.

        Raises:
            PdbusError: nothing has been sent.
        """
        try:
            body = await self._gathered()
        except PdbusError as error:
            raise self._named(error) from error
        spent_ms = round((self.clock.monotonic() - self.exchange.started_s) * 1000)
        headers = [*self._headers(), (b"openai-processing-ms", str(spent_ms).encode())]
        await send_json(self.exchange, send, body, headers=headers)

    async def _gathered(self) -> msgspec.Struct:
        async with self._opening() as lives:
            self._begin(lives.first)
            said = [Said() for _ in self.asked.calls]

            def gather(index: int, delta: Part) -> bool:
                if delta.finish is not None:
                    return False
                self.tally.take(self.clock.monotonic())
                said[index].take(delta)
                return True

            async with aclosing(lives.deltas(gather)) as deltas:
                async for index, delta in deltas:
                    self._take(index, delta)
                    said[index].take(delta)
            return self.asked.shape.whole(self._head(lives), said, self._end())

    async def stream(self, events: EventStream) -> None:
        """Give the answer as it comes; what is there at once is written at once.

        A finish chunk is written when its request has ended everywhere, and not before.

        Raises:
            PdbusError: `events` has been given all text that came before.
        """
        try:
            last = await self._streamed(events)
        except PdbusError as error:
            raise self._named(error) from error
        await events.close(last)

    async def _streamed(self, events: EventStream) -> bytes:
        """Write all but the last events, and return those."""
        async with self._opening() as lives:
            self._begin(lives.first)
            frames = self.frames = self.asked.shape.frames(self._head(lives))
            offer = partial(self._write_now, frames, events)
            batch = b""
            try:
                async with aclosing(lives.deltas(offer)) as deltas:
                    async for index, delta in deltas:
                        self._take(index, delta)
                        batch += frames.delta(index, delta)
                        if delta.finish is not None:
                            batch += frames.finish(index, delta.finish)
                        # What ends the last choice goes out with the end of the answer.
                        due = len(self._ends) < len(self.asked.calls) and not lives.pending
                        if batch and (due or len(batch) >= _BATCH_BYTES):
                            await events.write(batch)
                            batch = b""
                return batch + frames.end(self._end())
            except PdbusError:
                if batch:
                    await events.write(batch)
                raise

    def _write_now(self, frames: Frames, events: EventStream, index: int, part: Part) -> bool:
        """Write plain text where it arrives; nothing that came before waits when this is called."""
        if part.finish is not None or part.details is not None:
            return False
        direct = events.direct
        if direct is None:
            return self._begin_now(frames, events, index, part)
        data = frames.delta(index, part)
        if data and not direct.write(data):
            return False
        now_s = self.clock.monotonic()
        if self.tally.first_s is None:
            self.tally.take(now_s)
        if data:
            events.last_s = now_s
        return True

    def _begin_now(self, frames: Frames, events: EventStream, index: int, part: Part) -> bool:
        """Begin the stream where its first text arrives, if all of that can be written at once."""
        if not part.text or not events.fresh:
            return False
        now_s = self.clock.monotonic()
        self.tally.take(now_s)
        events.begin_now(frames.delta(index, part), now_s)
        return True

    def event_stream(self, scope: Scope, send: Send) -> EventStream:
        """Return the events of this answer; their head waits for the first write."""
        return EventStream(
            self.exchange,
            send,
            body=scope.get(BODY),
            clock=self.clock,
            opening=lambda: None if self.frames is None else self.frames.opening,
            headers=self._headers,
        )

    def last_words(self, error: PdbusError) -> bytes:
        """Return the events that end a stream that failed after its head was sent."""
        frames = self.frames
        if frames is None:
            # Only comments have been written: the answer itself has not begun.
            call = self.asked.calls[0]
            head = Head(call.rid, self.clock.unix_ms() // 1000, call.model)
            frames = self.asked.shape.frames(head)
        return frames.failure(error)

    def _take(self, index: int, delta: Delta) -> None:
        self.tally.take(self.clock.monotonic())
        if delta.finish is not None and delta.usage is not None:
            self._ends[index] = delta.finish, delta.usage

    def _end(self) -> Usage:
        """Return the usage of the whole answer, and tell the tally."""
        ends = self._ends
        if len(ends) < len(self.asked.calls):
            raise PdbusError(ErrorCode.INTERNAL, UNFINISHED)
        finishes, usages = zip(*[ends[index] for index in sorted(ends)], strict=True)
        usage = total_usage(usages, self.asked.choices_a_prompt)
        self.tally.end(finishes, usage)
        return usage

    def _opening(self) -> AbstractAsyncContextManager[Lives]:
        """Open the calls for a block; if it does not come to its end, they are given up."""
        return open_all(
            self.calls,
            self.asked.calls,
            at_once=self.at_once,
            clock=self.clock,
            why=lambda: self.exchange.abandoned or "not_delivered",
        )

    def _begin(self, live: Live) -> None:
        self.live = live
        # With a key the request may be an older one.
        exchange, rid = self.exchange, live.rid
        if exchange.request_id == exchange.rid:
            exchange.request_id = rid
        exchange.rid = rid
        self.tally.stage = Stage.FIRST

    def _named(self, error: PdbusError) -> PdbusError:
        """Return an error that names the field, where it is an engine that refuses a guide."""
        field = self.asked.guided
        if error.code is not ErrorCode.INVALID_VALUE or error.param is not None or not field:
            return error
        return PdbusError(error.code, f"Invalid '{field}': {error.detail}.", param=field)

    def _head(self, lives: Lives) -> Head:
        live = lives.first
        return Head(live.rid, live.created_ms // 1000, self.asked.calls[0].model)

    def _headers(self) -> Sequence[Header]:
        if self.live is None or not self.expose_placement:
            return ()
        placement = self.live.placement
        headers = [
            (b"x-pdbus-decode", placement.decode.instance.encode()),
            (b"x-pdbus-mode", placement.mode.encode()),
            (b"x-pdbus-attempt", str(placement.attempt).encode()),
        ]
        if self.tally.usage is not None and self.tally.usage.migrations:
            headers.append((b"x-pdbus-migrations", str(self.tally.usage.migrations).encode()))
        if placement.prefill is not None:
            headers.append((b"x-pdbus-prefill", placement.prefill.instance.encode()))
        return headers
