"""The data plane between simulated engines: receiver-driven rooms, chunks, cuts and dead peers.

Only the owner of pages writes them: a chunk lands through the receiver's own `land`, and only
while its room is open there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from proto.ids import Room
from proto.kv import Lane, TransferReport
from tests.sim.kernel.loop import SimLoop, owned_context
from tests.sim.kernel.trace import Trace

__all__ = ["KV_BYTES_PER_TOKEN", "End", "Fetch", "Offer", "PlaneEnd", "PlaneTimes", "SimDataPlane"]

KV_BYTES_PER_TOKEN = 256


class End(Enum):
    """How a side of a room stands."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlaneTimes:
    """Delays of the plane, in seconds."""

    chunk_s: tuple[float, float] = (0.001, 0.02)
    want_s: float = 20.0
    progress_s: float = 8.0
    notice_s: float = 2.0
    """Most time until a cut or a death is noticed."""


@dataclass(slots=True, eq=False)
class Offer:
    """The sender's side of a room: page contents, as far as they are computed."""

    room: Room
    end: PlaneEnd
    wake: Callable[[], None]
    pages: list[int] = field(default_factory=list)
    last: bool = False
    sent: int = 0
    state: End = End.OPEN
    fetch: Fetch | None = None
    failure: str = ""
    began: float = 0.0
    moving: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """The receiver's side of a room."""

    room: Room
    end: PlaneEnd
    wake: Callable[[], None]
    land: Callable[[int, int], None]
    """Writes one page: place in the request, content."""
    source: str
    tokens: int
    state: End = End.OPEN
    got: int = 0
    matched: bool = False
    failure: str = ""
    began: float = 0.0
    first_s: float = 0.0
    report: TransferReport | None = None


@dataclass(slots=True, eq=False)
class PlaneEnd:
    """The plane of one engine incarnation."""

    name: str
    """Of the worker process: cuts are between names."""
    incarnation: str
    card: str = ""
    """Digest of what must be equal on both ends."""
    alive: bool = True
    offers: dict[Room, Offer] = field(default_factory=dict)
    fetches: dict[Room, Fetch] = field(default_factory=dict)
    wants: dict[Room, Fetch] = field(default_factory=dict)
    """Asked for by a peer, and not offered yet."""
    dropped: int = 0


class SimDataPlane:
    """All planes of a world.

    Args:
        loop: virtual time.
        rng: the source of chance.
        trace: where transfers are recorded.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.times = PlaneTimes()
        self.ends: dict[str, PlaneEnd] = {}
        self.cuts: set[frozenset[str]] = set()
        self.stall_s = 0.0
        """Extra time of each chunk, at most, while a stall is on."""
        self._context = owned_context(None)

    def join(self, name: str, incarnation: str, card: str = "") -> PlaneEnd:
        """Open the plane of an engine."""
        end = self.ends[incarnation] = PlaneEnd(name, incarnation, card)
        return end

    def die(self, end: PlaneEnd) -> None:
        """The engine process is gone; its peers notice a little later."""
        end.alive = False
        self.ends.pop(end.incarnation, None)
        self.later(self.rng.random() * self.times.notice_s, self._peer_gone, end)

    def cut(self, one: str, other: str) -> None:
        """Cut two workers from each other; open transfers notice a little later."""
        self.cuts.add(frozenset((one, other)))
        self.later(self.rng.random() * self.times.notice_s, self._cut_noticed, one, other)

    def mend(self) -> None:
        """End all cuts and stalls."""
        self.cuts.clear()
        self.stall_s = 0.0

    def offer(self, end: PlaneEnd, room: Room, wake: Callable[[], None]) -> Offer:
        """Announce a room that this engine will produce."""
        offer = Offer(room, end, wake, began=self.loop.time())
        if room in end.offers:
            self.trace.violate("room", f"room {room} is offered twice by {end.name}")
        end.offers[room] = offer
        waiting = end.wants.pop(room, None)
        if waiting is not None:
            self._match(offer, waiting)
        self.later(self.times.want_s, self._offer_unwanted, offer)
        return offer

    def push(self, offer: Offer, pages: list[int], *, last: bool) -> None:
        """Add computed pages to an offer; their contents are copied here."""
        offer.pages.extend(pages)
        offer.last = last
        self._pump(offer)

    def fetch(
        self,
        end: PlaneEnd,
        source: str,
        room: Room,
        tokens: int,
        *,
        land: Callable[[int, int], None],
        wake: Callable[[], None],
    ) -> Fetch:
        """Ask the engine `source` for a room."""
        fetch = Fetch(room, end, wake, land, source, tokens, began=self.loop.time())
        end.fetches[room] = fetch
        self.later(self._hop(), self._want, fetch)
        self.later(self.times.want_s, self._fetch_unanswered, fetch)
        return fetch

    def abort_fetch(self, fetch: Fetch) -> None:
        """Give a fetch up: nothing lands any more, and the sender is told."""
        self._fail_fetch(fetch, "aborted here")
        self.later(self._hop(), self._stopped_by_receiver, fetch)

    def abort_offer(self, offer: Offer) -> None:
        """Give an offer up, and tell the receiver."""
        self._fail_offer(offer, "aborted here")
        if offer.fetch is not None:
            self.later(self._hop(), self._stopped_by_sender, offer)

    def _hop(self) -> float:
        return self.rng.uniform(*self.times.chunk_s) / 4

    def later(self, seconds: float, work: Callable[..., None], *args: object) -> None:
        """Call `work` in virtual time, on behalf of no process."""
        self.loop.call_later(seconds, work, *args, context=self._context)

    def _reachable(self, one: PlaneEnd, other: PlaneEnd) -> bool:
        if not (one.alive and other.alive):
            return False
        return frozenset((one.name, other.name)) not in self.cuts

    def _want(self, fetch: Fetch) -> None:
        source = self.ends.get(fetch.source)
        if fetch.state is not End.OPEN or not fetch.end.alive:
            return
        if source is None or not self._reachable(fetch.end, source):
            self.later(
                self.rng.random() * self.times.notice_s, self._fail_fetch, fetch, "no connection"
            )
            return
        offer = source.offers.get(fetch.room)
        if offer is None:
            source.wants[fetch.room] = fetch
        elif offer.state is End.OPEN:
            self._match(offer, fetch)
        else:
            self.later(self._hop(), self._fail_fetch, fetch, "the room is closed")

    def _match(self, offer: Offer, fetch: Fetch) -> None:
        if offer.fetch is not None and offer.fetch is not fetch:
            self.later(self._hop(), self._fail_fetch, fetch, "the room is taken")
            return
        offer.fetch = fetch
        fetch.matched = True
        self.trace.note("room", f"{offer.end.name} and {fetch.end.name} meet in {offer.room}")
        if offer.end.card != fetch.end.card:
            self.trace.violate("I9", f"{offer.end.name} and {fetch.end.name} differ, and meet")
        self._pump(offer)

    def _pump(self, offer: Offer) -> None:
        fetch = offer.fetch
        if fetch is None or offer.moving or offer.state is not End.OPEN:
            return
        if offer.sent >= len(offer.pages):
            return
        chunk = offer.pages[offer.sent : offer.sent + 8]
        first = offer.sent
        offer.moving = True
        delay = self.rng.uniform(*self.times.chunk_s)
        if self.stall_s:
            delay += self.rng.random() * self.stall_s
        self.later(delay, self._chunk, offer, fetch, first, chunk)

    def _chunk(self, offer: Offer, fetch: Fetch, first: int, chunk: list[int]) -> None:
        offer.moving = False
        if not self._reachable(offer.end, fetch.end):
            self.later(self.times.progress_s, self._no_progress, offer, fetch, first)
            return
        if fetch.state is not End.OPEN:
            fetch.end.dropped += 1
            return
        now = self.loop.time()
        fetch.first_s = fetch.first_s or now
        for place, content in enumerate(chunk):
            fetch.land(first + place, content)
        fetch.got = offer.sent = first + len(chunk)
        if offer.state is not End.OPEN:
            return
        if offer.last and offer.sent == len(offer.pages):
            self._finish(offer, fetch, now)
        else:
            self._pump(offer)

    def _finish(self, offer: Offer, fetch: Fetch, now: float) -> None:
        moved = fetch.tokens * KV_BYTES_PER_TOKEN
        fetch.state = End.DONE
        fetch.report = TransferReport(
            room=fetch.room,
            lane=Lane.TCP,
            expected_bytes=moved,
            moved_bytes=moved,
            tokens=fetch.tokens,
            chunks=(fetch.got + 7) // 8,
            queue_s=fetch.first_s - fetch.began,
            wire_s=now - fetch.first_s,
            total_s=now - fetch.began,
        )
        fetch.end.fetches.pop(fetch.room, None)
        fetch.wake()
        self.later(self._hop(), self._sent, offer)

    def _sent(self, offer: Offer) -> None:
        if offer.state is End.OPEN:
            offer.state = End.DONE
            offer.wake()

    def _fail_fetch(self, fetch: Fetch, why: str) -> None:
        if fetch.state is End.OPEN:
            fetch.state = End.FAILED
            fetch.failure = why
            fetch.end.fetches.pop(fetch.room, None)
            fetch.wake()

    def _fail_offer(self, offer: Offer, why: str) -> None:
        if offer.state is End.OPEN:
            offer.state = End.FAILED
            offer.failure = why
            offer.wake()

    def _offer_unwanted(self, offer: Offer) -> None:
        if offer.fetch is None:
            self._fail_offer(offer, "nobody asked for the room")

    def _fetch_unanswered(self, fetch: Fetch) -> None:
        if not fetch.matched:
            self.abort_fetch(fetch)

    def _no_progress(self, offer: Offer, fetch: Fetch, first: int) -> None:
        if offer.sent == first:
            self._fail_fetch(fetch, "no progress")
            self._fail_offer(offer, "no progress")

    def _stopped_by_receiver(self, fetch: Fetch) -> None:
        source = self.ends.get(fetch.source)
        if source is None or not self._reachable(source, fetch.end):
            return
        source.wants.pop(fetch.room, None)
        offer = source.offers.get(fetch.room)
        if offer is not None and offer.fetch is fetch:
            self._fail_offer(offer, "the receiver stopped")

    def _stopped_by_sender(self, offer: Offer) -> None:
        if offer.fetch is not None and self._reachable(offer.end, offer.fetch.end):
            self._fail_fetch(offer.fetch, "the sender stopped")

    def _peer_gone(self, end: PlaneEnd) -> None:
        for other in list(self.ends.values()):
            for offer in list(other.offers.values()):
                if offer.fetch is not None and offer.fetch.end is end:
                    self._fail_offer(offer, "the receiver died")
            for fetch in list(other.fetches.values()):
                if fetch.source == end.incarnation:
                    self._fail_fetch(fetch, "the sender died")

    def _cut_noticed(self, one: str, other: str) -> None:
        if frozenset((one, other)) not in self.cuts:
            return
        for end in list(self.ends.values()):
            for fetch in list(end.fetches.values()):
                source = self.ends.get(fetch.source)
                if source is None or {end.name, source.name} != {one, other}:
                    continue
                self._fail_fetch(fetch, "the connection broke")
                offer = source.offers.get(fetch.room)
                if offer is not None and offer.fetch is fetch:
                    self._fail_offer(offer, "the connection broke")
