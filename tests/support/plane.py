"""A data plane in memory, for engines of one process: the port's contract without UCX.

Chunks are copied when the test's `Exchange` delivers them: at once, or when told to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from libs.transfer.api import PagePool, PlaneStats, RoomState, TransferFailure
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress, TransferReport
from proto.pairs import PairProbe, SizeProbe

__all__ = ["Exchange", "MemoryPlane"]

FINAL = (RoomState.DONE, RoomState.FAILED)


@dataclass(eq=False)
class End:
    """One side of a room."""

    room: Room
    plane: MemoryPlane
    pages: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    row: int = 0
    tokens: int = 0
    state: RoomState = RoomState.WAITING
    failure: TransferFailure | None = None
    report: TransferReport | None = None
    skip_pages: int = 0
    peer: End | None = None
    moved: int = 0
    chunks: int = 0

    def abort(self, detail: str) -> None:
        """Give up on both sides."""
        self.fail(ErrorCode.CANCELLED, detail)
        if self.peer is not None:
            self.peer.fail(ErrorCode.KV_TRANSFER_FAILED, f"the other side gave up: {detail}")

    def fail(self, code: ErrorCode, detail: str) -> None:
        """End badly, unless the end came before."""
        if self.state not in FINAL:
            self.failure = TransferFailure(code, detail)
            self.end(RoomState.FAILED)

    def push(
        self,
        pages: Sequence[int] | npt.NDArray[np.int64],
        *,
        first_page: int,
        last: bool,
        row: int | None = None,
    ) -> None:
        """Queue a chunk at the exchange."""
        self.plane.exchange.submit(self, np.array(pages, np.int64), first_page, last, row)

    def end(self, state: RoomState) -> None:
        """Reach a final state."""
        self.state = state
        self.report = TransferReport(
            room=self.room,
            lane=Lane.LOCAL,
            expected_bytes=self.moved,
            moved_bytes=self.moved,
            tokens=self.tokens,
            chunks=self.chunks,
        )
        self.plane.stats.open_rooms -= 1
        self.plane.wake()


Chunk = tuple[End, npt.NDArray[np.int64], int, bool, int | None]


class Exchange:
    """Joins the two ends of each room and carries the chunks between them."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        """Whether chunks wait for `deliver`."""
        self.offers: dict[Room, End] = {}
        self.fetches: dict[Room, End] = {}
        self.waiting: list[Chunk] = []

    def join(self, room: Room) -> None:
        """Make a room READY when both of its ends are known."""
        offer, fetch = self.offers.get(room), self.fetches.get(room)
        if offer is None or fetch is None or offer.state in FINAL or fetch.state in FINAL:
            return
        offer.peer, fetch.peer = fetch, offer
        offer.tokens = fetch.tokens
        for end in (offer, fetch):
            end.state = RoomState.READY
            end.plane.wake()

    def submit(self, *chunk: *Chunk) -> None:
        """Take a chunk from prefill."""
        self.waiting.append(chunk)
        if not self.held:
            self.deliver()

    def deliver(self) -> None:
        """Copy all waiting chunks whose rooms are open on both sides."""
        chunks, self.waiting = self.waiting, []
        for offer, pages, first, last, row in chunks:
            fetch = offer.peer
            if fetch is None or offer.state in FINAL or fetch.state in FINAL:
                offer.plane.stats.dropped_chunks += 1
                continue
            self._copy(offer, fetch, pages, first)
            if last and row is not None:
                copy_items(offer.plane.rows, fetch.plane.rows, [row], [fetch.row])
            for end in (offer, fetch):
                end.chunks += 1
                end.state = RoomState.MOVING
                if last:
                    end.end(RoomState.DONE)

    def _copy(self, offer: End, fetch: End, pages: npt.NDArray[np.int64], first: int) -> None:
        target = fetch.pages[first : first + len(pages)]
        moved = copy_items(offer.plane.pages, fetch.plane.pages, pages, target)
        offer.moved += moved
        fetch.moved += moved


class MemoryPlane:
    """One engine's end of an exchange."""

    def __init__(
        self,
        exchange: Exchange,
        incarnation: str,
        pages: PagePool,
        rows: PagePool,
        wake: Callable[[], None],
    ) -> None:
        self.exchange = exchange
        self.pages = pages
        self.rows = rows
        self.wake = wake
        self.stats = PlaneStats()
        self.address = PeerAddress(incarnation=incarnation, host="here")
        self.closed = False

    def fetch(
        self,
        source: PeerAddress,
        room: Room,
        pages: Sequence[int] | npt.NDArray[np.int64],
        *,
        row: int,
        tokens: int,
        skip_pages: int = 0,
    ) -> End:
        """Ask for a room."""
        end = End(room, self, np.array(pages, np.int64), row, tokens)
        return self._open(end, self.exchange.fetches)

    def offer(self, room: Room) -> End:
        """Announce a room."""
        return self._open(End(room, self), self.exchange.offers)

    def connect(self, source: PeerAddress) -> bool:
        """Every engine of the process is in reach."""
        return True

    def probe(self, source: PeerAddress, done: Callable[[PairProbe], None]) -> None:
        """Every engine of the process is near."""
        near = SizeProbe(size_bytes=1024, seconds=1e-6, lane=Lane.LOCAL)
        done(PairProbe(lane=Lane.LOCAL, sizes=(near,)))

    def close(self) -> None:
        """Fail what is open."""
        self.closed = True
        for ends in (self.exchange.offers, self.exchange.fetches):
            for end in ends.values():
                if end.plane is self:
                    end.abort("closed")

    def _open(self, end: End, ends: dict[Room, End]) -> End:
        ends[end.room] = end
        self.stats.open_rooms += 1
        self.exchange.join(end.room)
        return end


def copy_items(
    source: PagePool,
    target: PagePool,
    out: Sequence[int] | npt.NDArray[np.int64],
    into: Sequence[int] | npt.NDArray[np.int64],
) -> int:
    """Copy numbered items between pools; return the bytes."""
    moved = 0
    for given, taken in zip(source.buffers, target.buffers, strict=True):
        taken[into] = given[out]
        moved += given[out].nbytes
    return moved
