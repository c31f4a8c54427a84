"""The data plane over UCX: rooms, links and lanes of one engine process, on one thread.

A decode plane opens a port of its own for each prefill engine and knocks at the accepting port of
the first lane that both have; prefill answers from a port of its own. Everything of that pair then
runs between these two ports, and dies with either process.

Create a plane in the process that uses it: UCX does not survive a fork.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from libs.transfer.api import KvLayout, PagePool, PlaneSettings, PlaneStats
from libs.transfer.crew import Crew, threads_for
from libs.transfer.device import DeviceStore, is_on_device
from libs.transfer.environment import excluded_lanes
from libs.transfer.links import DecodeSide, Parts, PrefillSide
from libs.transfer.links.door import wire_layout
from libs.transfer.pages import Pages, PageStore
from libs.transfer.reach import blocked
from libs.transfer.rooms import FetchRoom, OfferRoom
from libs.transfer.ucx import LaneContext, Loop, host_identity
from proto.errors import ErrorCode, PdbusError
from proto.ids import Room
from proto.kv import Lane, PeerAddress, TransferReport
from proto.pairs import PairProbe

__all__ = ["UcxPlane"]

_START_TIMEOUT_S = 30.0
_REST_S = 0.005
_BYE_S = 0.1
"""How long `close` waits for its farewells to leave."""


class UcxPlane:
    """A `DataPlane` over UCX.

    Args:
        layout: the shape of the pools; must be equal on both sides of a transfer.
        pages: the paged memory.
        rows: the auxiliary rows.
        settings: lanes, sizes and times.
        incarnation: the life of the engine that owns the memory.
        wake: called from the plane's thread after a room was asked for or is over.
        reports: called from the plane's thread with the report of each room that is over.
        rested: called from the plane's thread a little after `wake`, for what has time.

    Raises:
        PdbusError: a lane in the settings cannot be had (`lane_refused`).
        ValueError: the pools do not fit the layout.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - wiring
        self,
        layout: KvLayout,
        pages: PagePool,
        rows: PagePool,
        settings: PlaneSettings,
        incarnation: str,
        wake: Callable[[], None] | None = None,
        reports: Callable[[TransferReport], None] | None = None,
        rested: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._wake = wake
        self._reports = reports
        self._rested = rested
        self._changed = False
        self._closed = False
        self._crew = Crew(threads_for(settings.copy_threads), settings.shared_copy_bytes)
        self._on_device = False
        self._started = threading.Event()
        self._start_error: PdbusError | None = None
        self._loop = Loop(
            "pdbus-transfer",
            begin=self._begin,
            tick=self._tick,
            settle=self._settle,
            finish=self._finish,
        )
        self._parts = Parts(
            store=self._store(layout, pages, rows),
            layout=wire_layout(layout),
            settings=settings,
            incarnation=incarnation,
            host=host_identity(),
            secret=secrets.token_bytes(16),
            stats=PlaneStats(),
            loop=self._loop,
            changed=self._note_change,
            reported=self._report,
        )
        self._decode = DecodeSide(self._parts)
        self._prefill = PrefillSide(self._parts)
        self._workers: dict[str, bytes] = {}
        self._loop.start()
        self._await_start()

    @property
    def address(self) -> PeerAddress:
        """What peers need to reach this plane."""
        parts = self._parts
        return PeerAddress(
            incarnation=parts.incarnation,
            host=parts.host,
            workers=dict(self._workers),
            secret=parts.secret,
        )

    @property
    def stats(self) -> PlaneStats:
        """Counters since the start; the object is live."""
        stats = self._parts.stats
        stats.open_rooms = self._decode.open_rooms + self._prefill.open_rooms
        stats.peers = self._decode.peers + self._prefill.peers
        return stats

    def fetch(
        self,
        source: PeerAddress,
        room: Room,
        pages: Sequence[int] | Pages,
        *,
        row: int,
        tokens: int,
        skip_pages: int = 0,
    ) -> FetchRoom:
        """Ask a prefill engine for a room, into `pages` and auxiliary row `row` of ours.

        Raises:
            ValueError: pages or row are outside the pools.
        """
        fetch = FetchRoom(
            self._parts.store,
            room,
            pages,
            row=row,
            tokens=tokens,
            skip_pages=skip_pages,
            aborted=self._on_fetch_aborted,
            crew=self._crew,
        )
        self._loop.hand(partial(self._decode.fetch, source, fetch), self._settings.hand_s)
        # Whoever comes after the thread's last look at its commands finds the plane closed.
        if self._closed:
            fetch.fail(ErrorCode.CANCELLED, "the data plane is closed")
        return fetch

    def offer(self, room: Room, asker: str = "") -> OfferRoom:
        """Announce that this engine will produce a room; `asker` is who will ask, if known."""
        offer = OfferRoom(
            self._parts.store,
            room,
            asker=asker,
            pushed=self._on_pushed,
            aborted=self._on_offer_aborted,
            checksum_every=self._settings.checksum_every,
        )
        self._loop.post(partial(self._prefill.offer, offer))
        if self._closed:
            offer.fail(ErrorCode.CANCELLED, "the data plane is closed")
        return offer

    def has_link(self, decode: str) -> bool:
        """Return whether a decode engine is linked and may ask for rooms; from any thread."""
        return self._prefill.has_link(decode)

    def connect(self, source: PeerAddress) -> bool:
        """Begin to connect to a prefill engine; return whether the link is up."""
        up = self._decode.is_up(source.incarnation)
        if not up and not self._closed:
            self._loop.post(partial(self._decode.begin_link, source))
        return up

    def probe(self, source: PeerAddress, done: Callable[[PairProbe], None]) -> None:
        """Measure the way to a prefill engine; `done` is called once, from the plane's thread."""
        self._loop.post(partial(self._decode.probe, source, done))
        if self._closed:
            done(PairProbe(code=ErrorCode.CANCELLED, detail="the data plane is closed"))

    def close(self) -> None:
        """Fail all rooms, drop all peers, end the thread."""
        self._loop.end()

    def _store(self, layout: KvLayout, pages: PagePool, rows: PagePool) -> PageStore:
        if not is_on_device(pages.buffers):
            return PageStore(layout, pages, rows)
        # Anything that copies as a page store does is one to the rooms.
        self._on_device = True
        return cast("PageStore", DeviceStore(layout, pages.buffers, rows))

    def _await_start(self) -> None:
        if not self._started.wait(_START_TIMEOUT_S):
            raise PdbusError(ErrorCode.INTERNAL, "the data plane did not start in time")
        if self._start_error is not None:
            self.close()
            raise self._start_error
        if self._closed:
            raise PdbusError(ErrorCode.INTERNAL, "the data plane's thread has died")

    def _on_fetch_aborted(self, fetch: FetchRoom) -> None:
        self._loop.post(partial(self._decode.aborted, fetch))

    def _on_offer_aborted(self, offer: OfferRoom) -> None:
        self._loop.post(partial(self._prefill.moved, offer))

    def _on_pushed(self, offer: OfferRoom) -> None:
        self._loop.hand(partial(self._prefill.pushed, offer), self._settings.hand_s)

    def _begin(self) -> None:
        parts = self._parts
        try:
            parts.excluded.update(_unusable(self._settings.lanes, on_device=self._on_device))
            for lane in self._settings.lanes:
                if lane not in parts.excluded:
                    parts.contexts[lane] = LaneContext(lane, self._settings.interface)
            self._workers = self._prefill.open_doors()
        except PdbusError as error:
            self._start_error = error
        self._started.set()

    def _tick(self, now: float) -> bool:
        decode, prefill = self._decode.tick(now), self._prefill.tick(now)
        return decode or prefill

    def _settle(self) -> None:
        self._decode.settle()
        self._prefill.settle()
        if self._changed:
            self._changed = False
            if self._wake is not None:
                self._wake()
            if self._rested is not None:
                self._loop.later(_REST_S, self._rested)

    def _note_change(self) -> None:
        self._changed = True

    def _report(self, report: TransferReport | None) -> None:
        if self._reports is not None and report is not None:
            self._reports(report)

    def _finish(self) -> None:
        """Leave nothing open, however the thread ends."""
        self._closed = True
        self._started.set()
        self._loop.drain()
        links = [*self._decode.say_bye(), *self._prefill.say_bye()]
        end = time.monotonic() + _BYE_S
        while time.monotonic() < end and any(not (link.flushed or link.ended) for link in links):
            for link in links:
                if link.ended is None:
                    link.turn()
        self._decode.close()
        self._prefill.close()
        self._parts.contexts.clear()
        self._crew.close()
        self._settle()


def _unusable(lanes: Sequence[Lane], *, on_device: bool) -> dict[Lane, str]:
    """Return the lanes that cannot be had here, and why.

    Raises:
        PdbusError: that are all (`lane_refused`).
    """
    found = excluded_lanes(lanes, os.environ)
    device = "lane cma is blocked: KV memory is on a device" if on_device else None
    reason = device or blocked()
    if reason is not None and Lane.CMA in lanes:
        found.setdefault(Lane.CMA, reason)
    if found.keys() >= set(lanes):
        raise PdbusError(ErrorCode.LANE_REFUSED, "; ".join(found.values()))
    return found
