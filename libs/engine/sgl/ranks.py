"""The tensor-parallel ranks of one engine, put together: each has a plane and says its own part."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import msgspec

from libs.sglang_plugins.ranks import gather, rank_of
from proto.backend import PlaneFigures, PlaneOpened, RoomClosed
from proto.ids import Room
from proto.kv import Lane, TransferReport

__all__ = ["RankedRooms", "all_figures", "all_opened"]


class RankedRooms:
    """Makes one word of what all ranks say of a room; the first failure is told at once."""

    def __init__(self) -> None:
        self._parts: dict[Room, list[RoomClosed]] = {}

    def add(self, part: RoomClosed, ranks: int) -> RoomClosed | None:
        """Take in what one of `ranks` ranks says; return what is to be told of the room, if it is.

        A room is told of once, however many of its ranks fail.
        """
        if ranks <= 1:
            return part
        parts = self._parts.setdefault(part.room, [])
        failed = any(earlier.code is not None for earlier in parts)
        parts.append(part)
        whole = len(parts) == ranks
        if whole:
            del self._parts[part.room]
        if failed or (part.code is None and not whole):
            return None
        return part if part.code is not None else reduce(_both, parts)


def all_opened(parts: Iterable[PlaneOpened]) -> PlaneOpened:
    """Return what an engine's scheduler processes said as one, with the address of the engine.

    Raises:
        ValueError: they are not the ranks of one engine, or their memory differs.
    """
    first, *others = sorted(parts, key=lambda part: rank_of(part.address.incarnation))
    for other in others:
        if msgspec.structs.replace(other, address=first.address) != first:
            raise ValueError(f"{other.address.incarnation} has memory of another shape")
    return msgspec.structs.replace(
        first, address=gather([first.address, *(other.address for other in others)])
    )


def all_figures(parts: Iterable[PlaneFigures]) -> PlaneFigures:
    """Return the counters of an engine: ranks have the same rooms, and chunks of their own."""
    known = tuple(parts)
    return PlaneFigures(
        open_rooms=max((part.open_rooms for part in known), default=0),
        dropped_chunks=sum(part.dropped_chunks for part in known),
        unshared_links=sum(part.unshared_links for part in known),
    )


def _both(one: RoomClosed, other: RoomClosed) -> RoomClosed:
    return msgspec.structs.replace(
        one,
        report=_both_reports(one.report, other.report),
        # A rank that holds less has to be sent more: bytes are compared with that.
        held_tokens=min(one.held_tokens, other.held_tokens),
        queue_s=max(one.queue_s, other.queue_s),
        forward_s=max(one.forward_s, other.forward_s),
    )


def _both_reports(
    one: TransferReport | None, other: TransferReport | None
) -> TransferReport | None:
    """Return what two ranks moved at the same time; no single lane where theirs differ."""
    if one is None or other is None:
        return None
    return msgspec.structs.replace(
        one,
        lane=one.lane if one.lane is other.lane else Lane.UNKNOWN,
        expected_bytes=one.expected_bytes + other.expected_bytes,
        moved_bytes=one.moved_bytes + other.moved_bytes,
        chunks=one.chunks + other.chunks,
        queue_s=max(one.queue_s, other.queue_s),
        wire_s=max(one.wire_s, other.wire_s),
        copy_s=max(one.copy_s, other.copy_s),
        total_s=max(one.total_s, other.total_s),
    )
