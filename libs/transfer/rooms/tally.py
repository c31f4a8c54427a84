"""What one end of a room has done so far, and the report made of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from libs.transfer.api import RoomState
from proto.ids import Room
from proto.kv import Lane, TransferReport

__all__ = ["FINAL", "Tally"]

FINAL = (RoomState.DONE, RoomState.FAILED)


@dataclass(slots=True)
class Tally:
    """What a room has done so far, for its report."""

    asked: float
    lane: Lane = Lane.UNKNOWN
    expected: int = 0
    """Bytes."""
    moved: int = 0
    """Bytes."""
    tokens: int = 0
    chunks: int = 0
    first: float | None = None
    """When the first byte could have been sent."""
    started: float | None = None
    """When the first chunk was on its way."""
    ended: float | None = None
    """When the last chunk had arrived (or had left)."""
    copy_s: float = 0.0

    def report(self, room: Room) -> TransferReport:
        """Return the report as of now."""
        wire = self.ended - self.started if self.started and self.ended else 0.0
        now = time.monotonic()
        queue = (self.started or now) - self.first if self.first else 0.0
        return TransferReport(
            room=room,
            lane=self.lane,
            expected_bytes=self.expected,
            moved_bytes=self.moved,
            tokens=self.tokens,
            chunks=self.chunks,
            queue_s=max(0.0, queue),
            wire_s=max(0.0, wire),
            copy_s=self.copy_s,
            total_s=now - self.asked,
        )
