"""Prefill's end of a room: which of its pages are sent.

Every copy out of pages happens under the room's lock, after a look at its state. That makes `abort`
final: when it returns, no page is touched any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.api import RoomState, TransferFailure
from libs.transfer.checksum import digest_of, digest_of_runs, is_checked
from libs.transfer.pages import Pages, PageStore, as_pages
from libs.transfer.reach import ENTRY, LONG, Lease, Table, table_of
from libs.transfer.rooms.tally import FINAL, Tally
from libs.transfer.wire import HEADER_BYTES, SEAL_BYTES, ChunkHeader, Want, seal_chunk
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, TransferReport

__all__ = ["LEAST_RUN", "Filled", "OfferRoom"]

Bytes = npt.NDArray[np.uint8]

LEAST_RUN = 8 << 10
"""Where runs are shorter on average, the kernel's work for each costs more than gathering them."""
MOST_SHORT = 32
"""Unless they are so few that gathering costs more steps than the kernel's."""
_SELDOM = 4
"""They are checked so many times less often, unless all are: a digest of bytes that nobody has just
copied costs as much as the kernel's reading."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A chunk that is ready to leave."""

    message: Bytes
    payload: int
    """Bytes of pages and rows."""
    last: bool
    uses_slab: bool
    """Whether the slab must stay as it is until the chunk has left, or decode has taken it."""
    leased: bool
    """Whether it has left only when decode has taken it."""


class OfferRoom:
    """Prefill's end of a room."""

    def __init__(
        self,
        store: PageStore,
        room: Room,
        *,
        asker: str = "",
        pushed: Callable[[OfferRoom], None],
        aborted: Callable[[OfferRoom], None],
        checksum_every: int = 0,
    ) -> None:
        self.room = room
        self.asker = asker
        """The decode engine that will ask, if it is known."""
        self.link: Any = None
        """The link that carries the room; the plane's thread sets and reads it."""
        self._store = store
        self._pushed = pushed
        self._aborted = aborted
        self._checksum_every = checksum_every
        self._lock = Lock()
        self._state = RoomState.WAITING
        self._failure: TransferFailure | None = None
        self._report: TransferReport | None = None
        self._want: Want | None = None
        self._pages: Pages = np.empty(0, np.int64)
        self._start: int | None = None
        """Place in the request of the first page pushed."""
        self._cursor = 0
        """Place in the request of the next page to send."""
        self._row: int | None = None
        self._complete = False
        self._flushed = False
        self._flying = 0
        """Chunks that are made and not over: in whatever order they end, the room is needed."""
        self._ahead: Table | None = None
        """Where all pages and the row are, if that was looked up ahead."""
        self._lease: Lease | None = None
        """On the cma lane, what tells decode whether pages may still be read."""
        now = time.monotonic()
        self._tally = Tally(asked=now)
        self._queued_at = now
        self._moved_at = now

    @property
    def state(self) -> RoomState:
        """Where the room stands."""
        return self._state

    @property
    def failure(self) -> TransferFailure | None:
        """Why it failed."""
        return self._failure

    @property
    def report(self) -> TransferReport | None:
        """What it did, once it is over."""
        return self._report

    @property
    def skip_pages(self) -> int:
        """Pages at the start that decode already holds; valid from READY on."""
        return self._want.skip if self._want else 0

    def push(
        self, pages: Sequence[int] | Pages, *, first_page: int, last: bool, row: int | None = None
    ) -> None:
        """Queue pages that are complete; pages that decode already holds are left out.

        Raises:
            ValueError: pages outside the pool, a gap before them, or a push after the last one.
        """
        own = as_pages(pages, self._store.page_count)
        if row is not None:
            self._store.check_row(row)
        with self._lock:
            if self._state in FINAL:
                return
            if self._complete:
                raise ValueError("push after the last one")
            if self._start is None:
                self._start = first_page
            if first_page != self._start + len(self._pages):
                raise ValueError(f"page {first_page} does not follow what was pushed before")
            if not self._backlog():
                self._queued_at = self._moved_at = time.monotonic()
            self._pages = np.concatenate((self._pages, own)) if len(self._pages) else own
            self._complete, self._row = last, row
        self._pushed(self)

    def abort(self, detail: str) -> None:
        """Give up; when this returns no page of ours will be read any more."""
        if self.fail(ErrorCode.CANCELLED, detail):
            self._aborted(self)

    def fail(self, code: ErrorCode, detail: str) -> bool:
        """End the room; return whether it was still open."""
        with self._lock:
            return self._end(TransferFailure(code, detail))

    def look_ahead(self, slab_bytes: int) -> None:
        """Look up where the pages are before decode asks on the cma lane, if that is one chunk."""
        with self._lock:
            most = slab_bytes * LONG // self._store.page_bytes
            known = self._complete and self._want is None and self._state not in FINAL
            if known and 0 < len(self._pages) <= most:
                self._ahead = self._whole_runs(self._pages, self._row, slab_bytes)

    def match(self, want: Want, lane: Lane) -> bool:
        """Take up decode's want; return False if the room is over (see `failure`)."""
        store = self._store
        with self._lock:
            if self._state in FINAL:
                return False
            tally = self._tally
            tally.lane, tally.tokens = lane, want.tokens
            tally.expected = want.pages * store.page_bytes + (store.row_bytes if want.row else 0)
            if want.bytes != tally.expected:
                detail = f"decode expects {want.bytes} bytes, prefill {tally.expected}"
                self._end(TransferFailure(ErrorCode.KV_TRANSFER_FAILED, detail))
                return False
            self._want, self._cursor = want, want.skip
            if lane is Lane.CMA:
                self._lease = Lease(self.room)
            self._state = RoomState.READY
            self._queued_at = self._moved_at = time.monotonic()
            return True

    @property
    def has_chunk(self) -> bool:
        """Whether something can be sent now."""
        return self._want is not None and self._state not in FINAL and self._backlog()

    def fill(self, slab: Bytes, *, shared: bool = False) -> Filled | None:
        """Make the next chunk.

        Its payload is gathered into `slab`; on the cma lane only where it is in small pieces. Of a
        slab that decode shares only the payload is there.

        None means that there is nothing to send, or that the room has failed meanwhile.
        """
        began = time.monotonic()
        with self._lock:
            want = self._want
            if want is None or self._state in FINAL or not self._backlog():
                return None
            fault = self._fault(want)
            if fault:
                self._end(TransferFailure(ErrorCode.KV_TRANSFER_FAILED, fault))
                return None
            header, message, uses_slab = self._make(want, slab, began, shared=shared)
            self._note(header, began)
            self._flying += 1
            return Filled(
                message,
                header.payload,
                last=header.last,
                uses_slab=uses_slab,
                leased=header.entries > 0,
            )

    def sent(self) -> None:
        """Note that a chunk is over: it has left, or decode has taken it."""
        with self._lock:
            self._moved_at = self._tally.ended = time.monotonic()
            self._flying -= 1
            # A last chunk that was gathered has left before decode has read those before it.
            if self._flushed and not self._flying and self._state not in FINAL:
                self._report = self._tally.report(self.room)
                self._state = RoomState.DONE
                self._let_go()

    def overdue(self, now: float, want_s: float, transfer_s: float) -> str | None:
        """Return what has taken too long, if anything has."""
        if self._state is RoomState.WAITING and now - self._tally.asked > want_s:
            return f"decode did not ask for the room within {want_s:g} s"
        moving = self._state in (RoomState.READY, RoomState.MOVING)
        stuck = self._backlog() or self._flushed
        if moving and stuck and now - self._moved_at > transfer_s:
            return f"decode took no chunk within {transfer_s:g} s"
        return None

    def _backlog(self) -> bool:
        """Whether pages, or the end of the room, are still to be sent."""
        if self._flushed or self._start is None:
            return False
        return self._complete or self._cursor < self._start + len(self._pages)

    def _fault(self, want: Want) -> str | None:
        start = self._start or 0
        end = max(start + len(self._pages), want.skip)
        if self._cursor < start:
            return f"pages from {start} on were pushed, decode needs them from {self._cursor} on"
        if end > want.skip + want.pages:
            return f"pages up to {end} were pushed, decode asked up to {want.skip + want.pages}"
        if self._complete and end != want.skip + want.pages:
            return f"the room ended at page {end}, decode asked up to {want.skip + want.pages}"
        if self._complete and want.row and self._row is None:
            return "decode asked for a row, none was pushed"
        return None

    def _make(
        self, want: Want, slab: Bytes, began: float, *, shared: bool
    ) -> tuple[ChunkHeader, Bytes, bool]:
        """Return header and message of the next chunk, and whether the slab is needed for it."""
        store = self._store
        room_for = (len(slab) - HEADER_BYTES - SEAL_BYTES - store.row_bytes) // store.page_bytes
        if self._lease is not None:
            pages, last, row = self._next(want, room_for * LONG)
            runs = self._whole_runs(pages, row, len(slab))
            if runs is not None:
                header = self._header(pages, row, last=last, entries=1 + len(runs))
                return header, _point(header, self._lease, runs), False
        pages, last, row = self._next(want, room_for)
        payload = slab if shared else slab[HEADER_BYTES:]
        used = store.gather_pages(pages, payload)
        if row is not None:
            used += store.gather_row(row, payload[used:])
        self._tally.copy_s += time.monotonic() - began
        if shared:
            header = self._header(pages, row, last=last, shared=True)
            return header, _announce(header, slab[:used]), False
        if self._lease is None:
            header = self._header(pages, row, last=last)
            return header, slab[: seal_chunk(header, slab)], True
        header = self._header(pages, row, last=last, entries=2)
        gathered = table_of(((slab.ctypes.data + HEADER_BYTES, used),))
        return header, _point(header, self._lease, gathered), True

    def _next(self, want: Want, most: int) -> tuple[Pages, bool, int | None]:
        """Return the next pages, whether they are the last, and the row that goes with them."""
        start = self._start or 0
        pages = self._pages[self._cursor - start :][:most]
        last = self._complete and self._cursor + len(pages) >= start + len(self._pages)
        return pages, last, self._row if last and want.row else None

    def _header(
        self, pages: Pages, row: int | None, *, last: bool, entries: int = 0, shared: bool = False
    ) -> ChunkHeader:
        """Return the header of the next chunk, which is then behind us."""
        now = time.monotonic_ns()
        row_bytes = 0 if row is None else self._store.row_bytes
        header = ChunkHeader(
            room=self.room,
            sequence=self._tally.chunks,
            first_page=self._cursor,
            pages=len(pages),
            last=last,
            row_bytes=row_bytes,
            payload=len(pages) * self._store.page_bytes + row_bytes,
            waited_us=min(int(max(0.0, now / 1e9 - self._queued_at) * 1e6), 0xFFFFFFFF),
            sent_ns=now,
            checked=is_checked(self.room, self._tally.chunks, self._every(entries)),
            entries=entries,
            shared=shared,
        )
        self._cursor, self._flushed = self._cursor + len(pages), last
        return header

    def _every(self, entries: int) -> int:
        """Return of how many chunks one is checked."""
        every = self._checksum_every
        return every * _SELDOM if entries and every > 1 else every

    def _whole_runs(self, pages: Pages, row: int | None, slab_bytes: int) -> Table | None:
        """Return where pages and a row are, if they are in runs worth reading one by one."""
        known = self._ahead if row is not None and len(pages) == len(self._pages) else None
        runs = self._store.run_count(pages, row) if known is None else len(known)
        fits = HEADER_BYTES + (1 + runs) * ENTRY.itemsize + SEAL_BYTES <= slab_bytes
        worth = runs <= MOST_SHORT or len(pages) * self._store.page_bytes >= LEAST_RUN * runs
        if not fits or not worth:
            return None
        return self._store.runs(pages, row) if known is None else known

    def _note(self, header: ChunkHeader, began: float) -> None:
        tally = self._tally
        self._state = RoomState.MOVING
        if tally.started is None:
            tally.first, tally.started = self._queued_at, header.sent_ns / 1e9
        self._queued_at = self._moved_at = began
        tally.moved += header.payload
        tally.chunks += 1

    def _end(self, failure: TransferFailure) -> bool:
        if self._state in FINAL:
            return False
        self._failure = failure
        self._report = self._tally.report(self.room)
        self._state = RoomState.FAILED
        self._let_go()
        return True

    def _let_go(self) -> None:
        if self._lease is not None:
            self._lease.end()


def _announce(header: ChunkHeader, payload: Bytes) -> Bytes:
    """Return a chunk whose payload is in the shared slab."""
    message = np.empty(HEADER_BYTES + SEAL_BYTES, np.uint8)
    seal_chunk(header, message, digest_of(payload) if header.checked else None)
    return message


def _point(header: ChunkHeader, lease: Lease, runs: Table) -> Bytes:
    """Return a chunk that says where its payload is: first the lease, then the runs."""
    message = np.empty(HEADER_BYTES + header.carried + SEAL_BYTES, np.uint8)
    table = message[HEADER_BYTES:-SEAL_BYTES].view(ENTRY)
    table[0] = (lease.address, 8)
    table[1:] = runs
    seal_chunk(header, message, digest_of_runs(runs) if header.checked else None)
    return message
