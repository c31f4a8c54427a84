"""From a call to its answer: in one piece, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from starlette.types import Send

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.openai.chat import AnswerMessage, ChatCompletion, Choice
from proto.openai.usage import usage_info
from services.gateway.api import Calls, Live
from services.gateway.edge import EventStream, Exchange, send_json
from services.gateway.edge.reply import Header
from services.gateway.openai.ask import Asked
from services.gateway.openai.sse import ChatFrames
from services.gateway.openai.tally import Stage, Tally

__all__ = ["ChatAnswer"]

_BATCH_BYTES = 65_536
_UNFINISHED = "the answer ended without a finish"


@dataclass(slots=True)
class ChatAnswer:
    """One answer on its way."""

    asked: Asked
    calls: Calls
    exchange: Exchange
    tally: Tally
    clock: Clock
    expose_placement: bool
    """Whether the answer's head names the workers."""
    live: Live | None = None

    async def whole(self, send: Send) -> None:
        """Give the answer in one piece.

        Raises:
            PdbusError: nothing has been sent.
        """
        async with self._opened() as live:
            pieces: list[str] = []
            async with aclosing(live.deltas()) as deltas:
                async for delta in deltas:
                    self.tally.take(delta)
                    pieces.append(delta.text)
            body = self._completion(live, "".join(pieces))
        spent_ms = round((self.clock.monotonic() - self.exchange.started_s) * 1000)
        headers = [*self._headers(), (b"openai-processing-ms", str(spent_ms).encode())]
        await send_json(self.exchange, send, body, headers=headers)

    async def stream(self, events: EventStream) -> None:
        """Give the answer as it comes; what is there at once is written at once.

        The finish chunk is written when the request has ended everywhere, and not before.

        Raises:
            PdbusError: `events` has been given all text that came before.
        """
        async with self._opened() as live, aclosing(live.deltas()) as deltas:
            frames = self._frames(live)
            batch = b""
            try:
                async for delta in deltas:
                    self.tally.take(delta)
                    if delta.text:
                        batch += frames.text(delta.text)
                    if batch and (not live.pending or len(batch) >= _BATCH_BYTES):
                        await events.write(batch)
                        batch = b""
                if self.tally.finish is None:
                    raise PdbusError(ErrorCode.INTERNAL, _UNFINISHED)  # noqa: TRY301 - flushed below
            except PdbusError:
                if batch:
                    await events.write(batch)
                raise
        await events.close(batch + frames.end(self.tally.finish, self.tally.usage))

    def event_stream(self, send: Send) -> EventStream:
        """Return the events of this answer; their head waits for the first write."""
        return EventStream(
            self.exchange,
            send,
            clock=self.clock,
            opening=lambda: None if self.live is None else self._frames(self.live).opening,
            headers=self._headers,
        )

    def _frames(self, live: Live) -> ChatFrames:
        return ChatFrames(
            answer_id=_answer_id(live),
            created=live.created_ms // 1000,
            model=self.asked.call.model,
            include_usage=self.asked.include_usage,
        )

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Live]:
        """Open the call; if the block does not come to its end, the request is given up."""
        live = await self.calls.open(self.asked.call)
        self.live = live
        # With a key the request may be an older one.
        if self.exchange.request_id == self.exchange.rid:
            self.exchange.request_id = live.rid
        self.exchange.rid = live.rid
        self.tally.stage = Stage.FIRST
        ended = False
        try:
            yield live
            ended = True
        finally:
            if not ended:
                await live.cancel(self.exchange.abandoned or "not_delivered")

    def _completion(self, live: Live, content: str) -> ChatCompletion:
        finish, usage = self.tally.finish, self.tally.usage
        if finish is None or usage is None:
            raise PdbusError(ErrorCode.INTERNAL, _UNFINISHED)
        message = AnswerMessage(content=content)
        return ChatCompletion(
            id=_answer_id(live),
            created=live.created_ms // 1000,
            model=self.asked.call.model,
            choices=(Choice(index=0, message=message, finish_reason=finish),),
            usage=usage_info(usage),
        )

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


def _answer_id(live: Live) -> str:
    return f"chatcmpl-{live.rid}"
