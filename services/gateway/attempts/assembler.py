"""Puts the chunks of one answer in order. Pure.

Offsets make gaps and duplicates plain arithmetic, and the attempt number fences off whatever a
superseded worker still sends.
"""

from __future__ import annotations

from proto.errors import ErrorCode, PdbusError
from proto.gateway import TokenChunk

__all__ = ["Assembler"]

_MOST_HELD = 64


class Assembler:
    """The stream of one request over all its attempts.

    Attributes:
        next: number of tokens delivered, and so the offset that is expected next.
        duplicates: chunks that came again.
        stale: chunks of attempts that are over.
        inherited: of the tokens delivered, those that earlier attempts gave.
        source: the attempt that gave the newest ones.
    """

    def __init__(self) -> None:
        self.next = 0
        self.complete = False
        self.duplicates = 0
        self.stale = 0
        self.inherited = 0
        self.source = -1
        self._attempt = 0
        self._held: dict[int, TokenChunk] = {}

    @property
    def gap(self) -> bool:
        """Whether something later than the expected chunk has arrived."""
        return bool(self._held)

    def resume(self, tokens: int, source: int = -1) -> None:
        """Take so many tokens as delivered already, the newest by attempt `source`."""
        self.next, self.source = tokens, source

    def begin(self, attempt: int) -> None:
        """Accept chunks of this attempt only; it must not be older than the last one."""
        if attempt < self._attempt:
            raise PdbusError(ErrorCode.INTERNAL, "attempts never go backwards")
        if attempt != self.source:
            self.inherited, self.source = self.next, attempt
        self._attempt = attempt
        self._held.clear()

    def accept(self, chunk: TokenChunk) -> list[TokenChunk]:
        """Take in a chunk; return those that are next in order.

        Raises:
            PdbusError: stream_gap if chunks overlap in part, or the end is not where it must be.
        """
        if chunk.attempt != self._attempt or self.complete:
            self.stale += 1
            return []
        end = chunk.offset + len(chunk.ids) // 4
        if chunk.offset == self.next < end and chunk.finish is None and not self._held:
            # What nearly every chunk is.
            self.next = end
            return [chunk]
        if chunk.offset < self.next or (chunk.offset == self.next == end and not chunk.finish):
            if end > self.next:
                raise PdbusError(ErrorCode.STREAM_GAP, "chunks overlap in part")
            self.duplicates += 1
            return []
        key = chunk.offset if chunk.count else -1 - chunk.offset
        self._held[key] = chunk
        ready = self._release()
        if len(self._held) > _MOST_HELD:
            # What is held is bounded; the replay that closes the gap brings the rest again.
            del self._held[key]
        return ready

    def _release(self) -> list[TokenChunk]:
        ready: list[TokenChunk] = []
        while (chunk := self._held.pop(self.next, None)) is not None:
            ready.append(chunk)
            self.next += chunk.count
            self._finish(chunk)
        # A chunk without tokens stands behind the one that ends at its offset.
        last = self._held.pop(-1 - self.next, None)
        if last is not None:
            ready.append(last)
            self._finish(last)
        return ready

    def _finish(self, chunk: TokenChunk) -> None:
        if chunk.finish is None:
            return
        if chunk.total != self.next:
            detail = f"{self.next} tokens arrived, {chunk.total} were announced"
            raise PdbusError(ErrorCode.STREAM_GAP, detail)
        self.complete = True
