"""Decode's end of a room: which of its pages are filled.

Every copy into pages happens under the room's lock, after a look at its state. That makes `abort`
final: when it returns, no page is touched any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.api import RoomState, TransferFailure
from libs.transfer.checksum import digest_of, digest_of_runs
from libs.transfer.crew import Crew
from libs.transfer.pages import Pages, PageStore, as_pages
from libs.transfer.reach import ENTRY, LONG, Table, pull_leased, table_of
from libs.transfer.rooms.tally import FINAL, Tally
from libs.transfer.wire import HEADER_BYTES, ChunkHeader, Want, is_intact
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, TransferReport

__all__ = ["FetchRoom"]

Bytes = npt.NDArray[np.uint8]

LEAST_PIECE = 4 << 10
"""Where our runs are shorter on average, the kernel's work for each costs more than having it fill
a slab and scattering that."""
MOST_PIECES = 32
"""Unless they are so few that scattering costs more steps than the kernel's."""


class FetchRoom:
    """Decode's end of a room.

    `crew` helps to read long chunks.

    Raises:
        ValueError: pages or row are outside the pools.
    """

    def __init__(  # noqa: PLR0913 - one argument a fact of the ask
        self,
        store: PageStore,
        room: Room,
        pages: Sequence[int] | Pages,
        *,
        row: int,
        tokens: int,
        skip_pages: int,
        aborted: Callable[[FetchRoom], None],
        crew: Crew | None = None,
    ) -> None:
        self.room = room
        self.link: Any = None
        """The link that carries the room; the plane's thread sets and reads it."""
        self._store = store
        self._pages = as_pages(pages, store.page_count)
        self._row = store.check_row(row)
        self._skip = skip_pages
        self._aborted = aborted
        self._crew = crew
        self._lock = Lock()
        self._state = RoomState.WAITING
        self._failure: TransferFailure | None = None
        self._report: TransferReport | None = None
        self._page = 0
        self._forsaken = False
        """Whether the sender's pages were given up while they were read."""
        self._runs: Table | None = None
        """Where all pages and the row are, if that was looked up ahead and is worth knowing."""
        self._looked = False
        now = time.monotonic()
        self._tally = Tally(asked=now, tokens=tokens)
        self._tally.expected = len(self._pages) * store.page_bytes + store.row_bytes
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

    def abort(self, detail: str) -> None:
        """Give up; when this returns no page of ours will be written any more."""
        if self.fail(ErrorCode.CANCELLED, detail):
            self._aborted(self)

    def fail(self, code: ErrorCode, detail: str) -> bool:
        """End the room; return whether it was still open."""
        with self._lock:
            return self._end(TransferFailure(code, detail))

    def want(self) -> Want:
        """Return the message that asks for the room."""
        return Want(
            room=self.room,
            pages=len(self._pages),
            skip=self._skip,
            bytes=self._tally.expected,
            row=self._store.row_bytes > 0,
            tokens=self._tally.tokens,
        )

    def carried_by(self, lane: Lane) -> None:
        """Note the lane for the report."""
        self._tally.lane = lane

    def look_ahead(self, slab_bytes: int) -> None:
        """Look up where the pages are while prefill works on its answer, if that is one chunk."""
        if self._tally.expected <= slab_bytes * LONG:
            row = self._row if self._store.row_bytes else None
            self._runs = self._places(self._pages, row, slab_bytes - HEADER_BYTES)
            self._looked = True

    def ready(self) -> None:
        """Note that prefill has the room."""
        with self._lock:
            if self._state is RoomState.WAITING:
                self._state = RoomState.READY

    def overdue(self, now: float, want_s: float, transfer_s: float) -> str | None:
        """Return what has taken too long, if anything has."""
        if self._state is RoomState.WAITING and now - self._tally.asked > want_s:
            return f"prefill did not offer the room within {want_s:g} s"
        if self._state is RoomState.MOVING and now - self._moved_at > transfer_s:
            return f"no chunk within {transfer_s:g} s"
        return None

    def accept(
        self,
        header: ChunkHeader,
        slab: Bytes,
        *,
        same_clock: bool,
        pid: int = 0,
        shared: Bytes | None = None,
    ) -> bool:
        """Take a chunk into the pages; return False if it is of no use any more.

        Args:
            header: what the chunk says of itself.
            slab: where it lies, or where it says what to read.
            same_clock: whether the sender's monotonic clock is ours.
            pid: the sender's process, if it is on this host.
            shared: where its payload is if that is in shared memory.

        Raises:
            OSError: the chunk cannot be read out of the sender's memory.
        """
        arrived = time.monotonic()
        with self._lock:
            if self._state in FINAL or self._forsaken:
                return False
            fault = self._fault(header)
            if fault:
                self._end(TransferFailure(ErrorCode.KV_TRANSFER_FAILED, fault))
                return True
            pages = self._pages[self._page : self._page + header.pages]
            places: Table | None = None
            if header.entries:
                places = self._places_of(header, slab, pages)
                if not self._pull(header, slab, places, pid):
                    return self._state in FINAL
            payload = slab[HEADER_BYTES:] if shared is None else shared
            if not self._is_intact(header, slab, places, shared):
                return True
            if places is None:
                self._scatter(header, pages, payload)
            self._state = RoomState.MOVING
            # What is scattered had arrived before; what is read arrives by being read.
            self._note(
                header, time.monotonic() if header.entries else arrived, same_clock=same_clock
            )
            self._page += header.pages
            self._tally.moved += header.payload
            if header.last:
                self._finish()
            return True

    def _scatter(self, header: ChunkHeader, pages: Pages, payload: Bytes) -> None:
        began = time.monotonic()
        used = self._store.scatter_pages(pages, payload)
        if header.row_bytes:
            self._store.scatter_row(self._row, payload[used:])
        self._tally.copy_s += time.monotonic() - began

    def _places_of(self, header: ChunkHeader, slab: Bytes, pages: Pages) -> Table | None:
        """Return where a chunk is to be read to; None if into its slab, behind the header."""
        if self._looked and header.payload == self._tally.expected:
            return self._runs
        row = self._row if header.row_bytes else None
        return self._places(pages, row, len(slab) - HEADER_BYTES)

    def _places(self, pages: Pages, row: int | None, slab_bytes: int) -> Table | None:
        """Return where pages and a row are; None if many pieces that fit into a slab."""
        size = len(pages) * self._store.page_bytes + (0 if row is None else self._store.row_bytes)
        runs = self._store.run_count(pages, row)
        small = runs > MOST_PIECES and size < LEAST_PIECE * runs and size <= slab_bytes
        return None if small else self._store.runs(pages, row)

    def _pull(self, header: ChunkHeader, slab: Bytes, places: Table | None, pid: int) -> bool:
        """Read a chunk out of the sender's memory; return whether it was the sender's to offer."""
        offered = slab[HEADER_BYTES : HEADER_BYTES + header.carried].view(ENTRY)
        if places is None:
            # Where the runs are is known from here on; their bytes may take the place.
            offered = offered.copy()
            places = table_of(((slab.ctypes.data + HEADER_BYTES, header.payload),))
        # It was not, until it is known that it was; an error leaves it so.
        self._forsaken = True
        try:
            lease = pull_leased(pid, offered, places, self._crew)
        except ValueError as error:
            detail = f"chunk {header.sequence} cannot be read: {error}"
            self._end(TransferFailure(ErrorCode.KV_TRANSFER_FAILED, detail))
            return False
        # Where the lease is over, prefill has given the room up and is about to say so.
        self._forsaken = lease != self.room
        return not self._forsaken

    def _is_intact(
        self, header: ChunkHeader, slab: Bytes, places: Table | None, shared: Bytes | None
    ) -> bool:
        digest = None
        if header.checked and places is not None:
            digest = digest_of_runs(places)
        elif header.checked and shared is not None:
            digest = digest_of(shared[: header.payload])
        if is_intact(header, slab, digest):
            return True
        detail = f"chunk {header.sequence} is not what was sent"
        self._end(TransferFailure(ErrorCode.TRANSFER_CORRUPT, detail))
        return False

    def _fault(self, header: ChunkHeader) -> str | None:
        place = self._skip + self._page
        rows = self._store.row_bytes if header.last else 0
        if header.sequence != self._tally.chunks:
            return f"chunk {header.sequence} arrived, {self._tally.chunks} was due"
        if header.first_page != place:
            return f"chunk starts at page {header.first_page}, {place} was due"
        if self._page + header.pages > len(self._pages):
            return f"more pages arrived than the {len(self._pages)} asked for"
        if header.row_bytes != rows:
            return f"chunk has {header.row_bytes} bytes of rows, {rows} were due"
        if header.payload != header.pages * self._store.page_bytes + header.row_bytes:
            return f"chunk has {header.payload} bytes for {header.pages} pages"
        return None

    def _note(self, header: ChunkHeader, arrived: float, *, same_clock: bool) -> None:
        tally = self._tally
        if tally.started is None:
            tally.started = header.sent_ns / 1e9 if same_clock else arrived
            tally.first = tally.started - header.waited_us / 1e6
        tally.ended = self._moved_at = arrived
        tally.chunks += 1

    def _finish(self) -> None:
        if self._tally.moved == self._tally.expected:
            self._state = RoomState.DONE
            self._report = self._tally.report(self.room)
            return
        detail = f"{self._tally.moved} bytes moved, {self._tally.expected} were expected"
        self._end(TransferFailure(ErrorCode.TRANSFER_CORRUPT, detail))

    def _end(self, failure: TransferFailure) -> bool:
        if self._state in FINAL:
            return False
        self._failure = failure
        self._report = self._tally.report(self.room)
        self._state = RoomState.FAILED
        return True
