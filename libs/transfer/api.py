"""The data plane port: KV pages from one engine process to another, receiver-driven.

Only the owner of pages writes them. Decode *fetches* a room into its own pages; prefill *offers*
a room and pushes chunks of its own pages as they are computed. Both handles are polled or waited
on from any thread; all UCX work happens on the plane's own thread.

Life of a room::

    decode                                prefill
    fetch(room) -- want ---------------->  offer(room)      WAITING until both are known
                                           push(pages) ...  READY -> MOVING
    slab <------ chunk (granted credit) -  gather pages into a slab, send
    scatter, under the lock, room re-checked
    DONE  (last chunk scattered)           DONE  (last send completed)
    abort() ----- stop ----------------->  FAILED           (each direction)

A side's pages may be reused as soon as its own handle is DONE or FAILED: local evidence, no timer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress, TransferReport
from proto.pairs import PairProbe

__all__ = [
    "DataPlane",
    "Fetch",
    "KvLayout",
    "Offer",
    "PagePool",
    "PlaneSettings",
    "PlaneStats",
    "RoomState",
    "TransferFailure",
]

Pages = npt.NDArray[np.int64]


class RoomState(IntEnum):
    """Where a handle stands; FAILED and DONE are final."""

    FAILED = 0
    WAITING = 1
    """The other side is not known yet."""
    READY = 2
    """Both sides are known; nothing has moved."""
    MOVING = 3
    DONE = 4


@dataclass(frozen=True, slots=True)
class TransferFailure:
    """Why a room failed."""

    code: ErrorCode
    detail: str


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of paged memory; must be equal on both sides."""

    page_bytes: tuple[int, ...]
    """Bytes of one page in each buffer (all K layers, then all V layers)."""
    row_bytes: tuple[int, ...]
    """Bytes of one row in each auxiliary buffer (first token, log-probabilities, ...)."""
    page_tokens: int
    compat: str
    """Digest of the compatibility card (or of what the engine process knows of it)."""
    facts: tuple[tuple[str, str], ...] = ()
    """What the digest is of, field by field, so that a difference can be named."""


@dataclass(slots=True)
class PagePool:
    """Paged memory as bytes: one array of shape (pages, page_bytes) and dtype uint8 a buffer.

    Pages, not rows, may be in device memory: then each buffer has the CUDA array interface.
    """

    buffers: Sequence[Any]


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """How the data plane behaves; all times in seconds."""

    lanes: tuple[Lane, ...] = (Lane.SYSV, Lane.TCP)
    """Lanes on which peers are accepted, best first. A lane not listed is never used."""
    required: tuple[Lane, ...] = ()
    """Lanes on which KV may move at all; none means any. A pair on another lane is refused."""
    interface: str | None = None
    """Network device for the TCP lane; None lets UCX choose."""
    chunk_bytes: int = 2 << 20
    checksum_every: int = 8
    """One chunk of so many has a checksum: 1 for all of them, 0 for none.

    Where chunks are read in place, a quarter as many, unless all have one.
    """
    credits: int = 4
    """Slabs that decode grants to each prefill peer: chunks under way between the two."""
    in_flight: int = 16
    """Chunks under way from one prefill engine to all its peers."""
    connect_timeout_s: float = 5.0
    probe_timeout_s: float = 5.0
    want_timeout_s: float = 60.0
    """How long a fetch waits for its offer, and an offer for its fetch."""
    transfer_timeout_s: float = 20.0
    """Most time between the first and the last chunk without progress."""
    hand_s: float = 0.0
    """How long a fetch or a push waits for the plane's thread to take it up, GIL in hand.

    For callers that would otherwise go on computing in Python while the thread waits its turn.
    """
    copy_threads: int | None = None
    """Most threads that read one long chunk together, the plane's own included; never more than
    there are cores. None is half of the cores, at most four: engines compute on the others.
    Helpers begin with the first such chunk and end with the plane.
    """
    shared_copy_bytes: int = 16 << 20
    """How long such a chunk is at least: to wake a helper costs as much as to read 1 or 2 MiB."""
    sent_wake_s: float = 0.0
    """How much later than its end an offer that was sent well wakes its owner.

    What follows then is housekeeping; on few cores it would delay what decode does at that time.
    """


@dataclass(slots=True)
class PlaneStats:
    """Counters since the start."""

    open_rooms: int = 0
    peers: int = 0
    peers_lost: int = 0
    dropped_chunks: int = 0
    """Chunks for unknown or closed rooms."""
    refused_peers: int = 0
    strangers: int = 0
    """Greetings without a ticket, dropped."""
    corrupt_rooms: int = 0
    """Rooms whose bytes were not what was sent, or not as many."""
    bytes_sent: int = 0
    bytes_received: int = 0
    by_lane: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes sent and received."""
    malformed_messages: int = 0
    """Messages dropped because they made no sense."""
    unshared_links: int = 0
    """Links on one host for which there was no segment: UCX carries their chunks, twice as dear."""

    def note_lane(self, lane: Lane, moved: int) -> None:
        """Count bytes that a lane has carried."""
        self.by_lane[lane] = self.by_lane.get(lane, 0) + moved


class Fetch(Protocol):
    """Decode's end of a room."""

    room: Room

    @property
    def state(self) -> RoomState:
        """Where it stands."""
        ...

    @property
    def failure(self) -> TransferFailure | None:
        """Why it failed."""
        ...

    @property
    def report(self) -> TransferReport | None:
        """Set when the state is final."""
        ...

    def abort(self, detail: str) -> None:
        """Give up; when this returns no page of ours will be written any more."""
        ...


class Offer(Protocol):
    """Prefill's end of a room."""

    room: Room

    @property
    def state(self) -> RoomState:
        """Where it stands."""
        ...

    @property
    def failure(self) -> TransferFailure | None:
        """Why it failed."""
        ...

    @property
    def report(self) -> TransferReport | None:
        """Set when the state is final."""
        ...

    @property
    def skip_pages(self) -> int:
        """Pages at the start that decode already holds; valid from READY on."""
        ...

    def push(
        self, pages: Sequence[int] | Pages, *, first_page: int, last: bool, row: int | None = None
    ) -> None:
        """Send pages that are complete; `first_page` is their place in the request.

        Returns when the pages have been copied out or queued; they must stay unchanged until the
        state is final. `row` is the auxiliary row to send with the last chunk.
        """
        ...

    def abort(self, detail: str) -> None:
        """Give up; when this returns no page of ours will be read any more."""
        ...


class DataPlane(Protocol):
    """One per engine process (and tensor-parallel rank)."""

    @property
    def address(self) -> PeerAddress:
        """What peers need to reach this plane."""
        ...

    @property
    def stats(self) -> PlaneStats:
        """Counters since the start; the object is live."""
        ...

    def fetch(
        self,
        source: PeerAddress,
        room: Room,
        pages: Sequence[int] | Pages,
        *,
        row: int,
        tokens: int,
        skip_pages: int = 0,
    ) -> Fetch:
        """Ask a prefill engine for a room, into `pages` and auxiliary row `row` of ours."""
        ...

    def offer(self, room: Room, asker: str = "") -> Offer:
        """Announce that this engine will produce a room; `asker` is who will ask, if known.

        An offer fails with the link to its asker, even before it was asked for.
        """
        ...

    def has_link(self, decode: str) -> bool:
        """Return whether a decode engine is linked and may ask for rooms; from any thread."""
        ...

    def connect(self, source: PeerAddress) -> bool:
        """Begin to connect to a prefill engine; return whether the link is up."""
        ...

    def probe(self, source: PeerAddress, done: Callable[[PairProbe], None]) -> None:
        """Measure the way to a prefill engine; `done` is called once, from any thread."""
        ...

    def close(self) -> None:
        """Fail all rooms, drop all peers, end the thread."""
        ...


Wake = Callable[[], None]
"""Called from the plane's thread when an offer is asked for, and when a room is over."""
