"""Decode's side of a plane: one link a prefill engine, and the rooms asked of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

import msgspec

from libs.transfer.api import TransferFailure
from libs.transfer.links.inbound import Inbound
from libs.transfer.links.parts import Parts
from libs.transfer.rooms import FINAL, FetchRoom
from libs.transfer.ucx import TransportError, choose_lane
from libs.transfer.wire import VERSION, Hello, ticket_of
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress
from proto.pairs import PairProbe

__all__ = ["DecodeSide"]


class DecodeSide:
    """Fetches and the links they use; all on the plane's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._links: dict[str, Inbound] = {}
        self._fetches: dict[Room, FetchRoom] = {}
        self._unreadable: dict[str, str] = {}
        """Prefill engines whose memory cannot be read, and why."""

    @property
    def open_rooms(self) -> int:
        """Rooms that are not over."""
        return len(self._fetches)

    @property
    def peers(self) -> int:
        """Prefill engines linked or being linked."""
        return len(self._links)

    def is_up(self, incarnation: str) -> bool:
        """Return whether the link to a prefill engine is up; from any thread."""
        link = self._links.get(incarnation)
        return link is not None and link.up

    def fetch(self, source: PeerAddress, fetch: FetchRoom) -> None:
        """Ask for a room."""
        if fetch.room in self._fetches:
            self._refuse(fetch, ErrorCode.KV_TRANSFER_FAILED, "the room is being fetched already")
            return
        link = self.connect(source)
        if isinstance(link, TransferFailure):
            self._refuse(fetch, link.code, link.detail)
            return
        self._parts.loop.touch(link)
        link.ask(fetch)
        if fetch.failure is None:
            self._fetches[fetch.room] = fetch
            return
        # It was given up before its turn; prefill may hold an offer that waits for it.
        link.stop(fetch, fetch.failure)
        self._over(fetch)

    def begin_link(self, source: PeerAddress) -> None:
        """Connect ahead of the first fetch."""
        self.connect(source)

    def connect(self, source: PeerAddress) -> Inbound | TransferFailure:
        """Return the link to a prefill engine, begun if need be, or why there is none."""
        link = self._links.get(source.incarnation)
        if link is not None and link.ended is None:
            return link
        if link is not None:
            self._drop(link)
        parts = self._parts
        lanes = parts.allowed_lanes
        if source.incarnation in self._unreadable:
            lanes = tuple(lane for lane in lanes if lane is not Lane.CMA)
        lane = choose_lane(lanes, parts.host, source)
        if lane is None:
            return TransferFailure(ErrorCode.LANE_REFUSED, self._why_no_lane(source))
        try:
            link = Inbound(
                parts.contexts[lane],
                source,
                hello=lambda worker, segment: self._hello(source, lane, worker, segment),
                slab_bytes=parts.slab_bytes,
                slots=parts.settings.credits,
                same_host=source.host == parts.host,
                stats=parts.stats,
                loop=parts.loop,
                moved=self._moved,
            )
        except TransportError as error:
            return TransferFailure(ErrorCode.KV_TRANSFER_FAILED, f"no port: {error}")
        self._links[source.incarnation] = link
        parts.loop.add(link)
        return link

    def probe(self, source: PeerAddress, done: Callable[[PairProbe], None]) -> None:
        """Measure the way to a prefill engine; `done` is called once, on this thread."""
        link = self.connect(source)
        if isinstance(link, TransferFailure):
            # The lane that would be used says most about one that may not be.
            lane = choose_lane(tuple(self._parts.contexts), self._parts.host, source)
            done(PairProbe(lane=lane or Lane.UNKNOWN, code=link.code, detail=link.detail))
            return
        link.prober.begin(done)
        self._parts.loop.touch(link)

    def aborted(self, fetch: FetchRoom) -> None:
        """Tell prefill of a room that was given up here."""
        if isinstance(fetch.link, Inbound) and fetch.failure is not None:
            fetch.link.stop(fetch, fetch.failure)
            self._parts.loop.touch(fetch.link)
        self._finish(fetch)

    def tick(self, now: float) -> bool:
        """End what has taken too long; return whether anything is still under way."""
        settings = self._parts.settings
        for link in self._links.values():
            if not link.up and now - link.since > settings.connect_timeout_s:
                link.give_up(f"no answer within {settings.connect_timeout_s:g} s")
        for fetch in tuple(self._fetches.values()):
            late = fetch.overdue(now, settings.want_timeout_s, settings.transfer_timeout_s)
            if late and fetch.fail(ErrorCode.DEADLINE, late):
                self.aborted(fetch)
        for link in self._links.values():
            link.prober.expire(now, settings.probe_timeout_s)
        busy = any(not link.up or link.prober.active for link in self._links.values())
        return bool(self._fetches) or busy

    def settle(self) -> None:
        """Drop the links that are over."""
        for link in [link for link in self._links.values() if link.ended is not None]:
            self._drop(link)

    def say_bye(self) -> list[Inbound]:
        """Fail all rooms and bid farewell; return the links that have to be flushed."""
        for fetch in tuple(self._fetches.values()):
            fetch.fail(ErrorCode.CANCELLED, "the data plane closes")
            self._finish(fetch)
        for link in self._links.values():
            link.say_bye()
        return list(self._links.values())

    def close(self) -> None:
        """Destroy all links."""
        for link in tuple(self._links.values()):
            self._drop(link)

    def _hello(self, source: PeerAddress, lane: Lane, worker: bytes, segment: int | None) -> Hello:
        parts = self._parts
        hello = Hello(
            version=VERSION,
            nonce=secrets.token_hex(16),
            incarnation=parts.incarnation,
            target=source.incarnation,
            lane=lane,
            worker=worker,
            host=parts.host,
            pid=os.getpid(),
            layout=parts.layout,
            slab_bytes=parts.slab_bytes,
            slots=parts.settings.credits,
            segment=segment,
        )
        return msgspec.structs.replace(hello, ticket=ticket_of(source.secret, hello))

    def _why_no_lane(self, source: PeerAddress) -> str:
        parts = self._parts
        other = choose_lane(tuple(parts.contexts), parts.host, source)
        if source.incarnation in self._unreadable and Lane.CMA in parts.settings.required:
            return self._unreadable[source.incarnation]
        if other is not None:
            wanted = ", ".join(parts.settings.required)
            return f"only lane {other} leads to prefill, required is {wanted}"
        mine = ", ".join(parts.contexts) or "none"
        theirs = ", ".join(source.workers) or "none"
        return f"no common lane: decode has {mine}, prefill has {theirs}{parts.excluded_text}"

    def _refuse(self, fetch: FetchRoom, code: ErrorCode, detail: str) -> None:
        fetch.fail(code, detail)
        self._over(fetch)

    def _moved(self, fetch: FetchRoom) -> None:
        # Until its end there is nothing that a scheduler could do, so nobody is woken.
        if fetch.state in FINAL:
            self._finish(fetch)

    def _finish(self, fetch: FetchRoom) -> None:
        if self._fetches.get(fetch.room) is fetch:
            del self._fetches[fetch.room]
            self._over(fetch)

    def _over(self, fetch: FetchRoom) -> None:
        self._parts.reported(fetch.report)
        self._parts.changed()

    def _drop(self, link: Inbound) -> None:
        self._links.pop(link.source.incarnation, None)
        self._parts.loop.remove(link)
        if link.ended is not None and link.up and not link.polite:
            self._parts.stats.peers_lost += 1
        rooms = self._spared(link)
        link.close()
        for fetch in rooms:
            self._ask_again(link.source, fetch)

    def _spared(self, link: Inbound) -> list[FetchRoom]:
        """Take the rooms of a link that never came up because another lane must be used."""
        if not link.unreadable:
            return []
        self._unreadable[link.source.incarnation] = link.unreadable
        rooms = list(link.rooms.values())
        link.rooms.clear()
        return rooms

    def _ask_again(self, source: PeerAddress, fetch: FetchRoom) -> None:
        other = self.connect(source)
        if isinstance(other, TransferFailure):
            fetch.fail(other.code, other.detail)
            self._finish(fetch)
        else:
            other.ask(fetch)
            self._parts.loop.touch(other)
