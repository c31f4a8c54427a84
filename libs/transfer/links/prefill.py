"""Prefill's side of a plane: the doors, one link a decode engine, and the rooms on offer."""

from __future__ import annotations

import hmac
import time

from libs.transfer.api import RoomState, TransferFailure
from libs.transfer.links.admission import Admission
from libs.transfer.links.door import Door, judge
from libs.transfer.links.outbound import Outbound
from libs.transfer.links.parts import Parts
from libs.transfer.rooms import FINAL, EarlyWant, OfferRoom, OfferTable
from libs.transfer.ucx import LaneContext, TransportError
from libs.transfer.wire import Hello, Want, ticket_of
from proto.errors import ErrorCode, PdbusError
from proto.ids import Room
from proto.kv import Lane

__all__ = ["PrefillSide"]

_LINGER_S = 1.0
"""How long a link stays after a refusal, so that the refusal arrives."""


class PrefillSide:
    """Offers and the links they use; all on the plane's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._doors: dict[Lane, Door] = {}
        self._links: dict[str, Outbound] = {}
        self._refused: list[Outbound] = []
        self._table = OfferTable()
        self.admission: Admission[Outbound] = Admission(parts.settings.in_flight, parts.loop.touch)

    @property
    def open_rooms(self) -> int:
        """Rooms that are not over."""
        return len(self._table)

    @property
    def peers(self) -> int:
        """Decode engines linked."""
        return len(self._links)

    def has_link(self, incarnation: str) -> bool:
        """Return whether a decode engine is linked; from any thread."""
        return incarnation in self._links

    def open_doors(self) -> dict[str, bytes]:
        """Accept peers on every lane; return the addresses.

        Raises:
            PdbusError: a lane has no means left for a port (`lane_refused`).
        """
        for lane, context in self._parts.contexts.items():
            try:
                door = Door(context, self._parts.stats, self._knock)
            except TransportError as error:
                raise PdbusError(ErrorCode.LANE_REFUSED, f"lane {lane}: {error}") from error
            self._doors[lane] = door
            self._parts.loop.add(door)
        return {str(lane): door.address for lane, door in self._doors.items()}

    def offer(self, offer: OfferRoom) -> None:
        """Put a room on offer."""
        early = self._table.open(offer)
        if isinstance(early, TransferFailure):
            offer.fail(early.code, early.detail)
            self._over(offer)
        elif early is not None:
            early.link.match(offer, early.want)
            self._parts.loop.touch(early.link)
        elif offer.state in FINAL:
            self.moved(offer)

    def pushed(self, offer: OfferRoom) -> None:
        """Send what has been pushed, if decode has asked for it."""
        if isinstance(offer.link, Outbound) and offer.link.ended is None:
            offer.link.queue(offer)
            self._parts.loop.touch(offer.link)
        elif offer.link is None and Lane.CMA in self._parts.contexts:
            offer.look_ahead(self._parts.slab_bytes)

    def moved(self, offer: OfferRoom) -> None:
        """An offer may have come further, or to its end here: then decode is told."""
        if offer.state in FINAL and self._table.find(offer.room) is offer:
            self._table.close(offer.room, offer.failure)
            if offer.failure is not None and isinstance(offer.link, Outbound):
                offer.link.stop(offer, offer.failure)
                self._parts.loop.touch(offer.link)
            self._parts.reported(offer.report)
        if offer.state is RoomState.DONE and self._parts.settings.sent_wake_s > 0:
            self._parts.loop.later(self._parts.settings.sent_wake_s, self._parts.changed)
        elif offer.state is not RoomState.MOVING:
            # A scheduler waits for the ask and for the end, not for each chunk.
            self._parts.changed()

    def wanted(self, link: Outbound, want: Want) -> None:
        """Decode asks for a room."""
        found = self._table.ask(EarlyWant(want, link, time.monotonic()))
        if isinstance(found, OfferRoom):
            link.match(found, want)
        elif isinstance(found, TransferFailure):
            link.refuse(want.room, found)
        elif found is not None:
            full = TransferFailure(ErrorCode.SATURATED, "too many rooms are asked for early")
            found.link.refuse(found.want.room, full)
            self._parts.loop.touch(found.link)

    def stopped(self, link: Outbound, room: Room, failure: TransferFailure) -> None:
        """Decode has given a room up."""
        offer = self._table.find(room)
        if offer is None:
            self._table.withdraw(room, link, failure)
        elif offer.link is link:
            self._end(offer, failure)

    def tick(self, now: float) -> bool:
        """End what has taken too long; return whether anything is still under way."""
        settings = self._parts.settings
        for offer in self._table.offers():
            late = offer.overdue(now, settings.want_timeout_s, settings.transfer_timeout_s)
            if late and offer.fail(ErrorCode.DEADLINE, late):
                self.moved(offer)
        for early in self._table.expired(now - settings.want_timeout_s):
            late = f"prefill did not offer the room within {settings.want_timeout_s:g} s"
            early.link.refuse(early.want.room, TransferFailure(ErrorCode.DEADLINE, late))
            self._parts.loop.touch(early.link)
        for link in [link for link in self._refused if now - link.since > _LINGER_S]:
            self._refused.remove(link)
            self._destroy(link)
        return bool(len(self._table) or self._table.early or self._refused)

    def settle(self) -> None:
        """Drop the links that are over."""
        for link in [link for link in self._links.values() if link.ended is not None]:
            self._drop(link)
        for link in [link for link in self._refused if link.ended is not None]:
            self._refused.remove(link)
            self._destroy(link)

    def say_bye(self) -> list[Outbound]:
        """Fail all rooms and bid farewell; return the links that have to be flushed."""
        for offer in self._table.offers():
            self._end(offer, TransferFailure(ErrorCode.CANCELLED, "the data plane closes"))
        for link in self._links.values():
            link.say_bye()
        return list(self._links.values())

    def close(self) -> None:
        """Destroy all links and doors."""
        for link in tuple(self._links.values()):
            self._drop(link)
        for link in self._refused:
            self._destroy(link)
        self._refused.clear()
        for door in self._doors.values():
            self._parts.loop.remove(door)
            door.close()
        self._doors.clear()

    def _knock(self, context: LaneContext, hello: Hello) -> None:
        parts = self._parts
        if not hmac.compare_digest(hello.ticket, ticket_of(parts.secret, hello)):
            # Not even an answer: its address is nothing to be given to UCX.
            parts.stats.strangers += 1
            return
        refusal = judge(
            hello,
            parts.layout,
            parts.incarnation,
            parts.least_slab_bytes,
            parts.settings.required,
        )
        try:
            link = Outbound(context, hello, refusal, parts, self)
        except TransportError:
            # Without a port there is no way to answer: decode's connect timeout says so.
            parts.stats.refused_peers += 1
            return
        parts.loop.add(link)
        if refusal is not None:
            parts.stats.refused_peers += 1
            self._refused.append(link)
            return
        former = self._links.get(hello.incarnation)
        if former is not None:
            former.replaced()
            self._drop(former)
        self._links[hello.incarnation] = link

    def _end(self, offer: OfferRoom, failure: TransferFailure) -> None:
        """End an offer without telling decode, which knows."""
        offer.fail(failure.code, failure.detail)
        self._table.close(offer.room, failure)
        self._over(offer)

    def _over(self, offer: OfferRoom) -> None:
        self._parts.reported(offer.report)
        self._parts.changed()

    def _drop(self, link: Outbound) -> None:
        del self._links[link.hello.incarnation]
        failure = link.ended or TransferFailure(ErrorCode.DECODE_LOST, "the data plane closes")
        if link.ended is not None and not link.polite:
            self._parts.stats.peers_lost += 1
        self._destroy(link)
        self._table.forget(link, failure)
        for offer in self._table.offers():
            unasked = offer.link is None and offer.asker == link.hello.incarnation
            if offer.link is link or (unasked and link.ended is not None):
                self._end(offer, failure)

    def _destroy(self, link: Outbound) -> None:
        self._parts.loop.remove(link)
        link.close()
