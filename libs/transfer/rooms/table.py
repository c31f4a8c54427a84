"""Prefill's rooms: offers and wants find each other here, in either order.

Pure bookkeeping; the plane's thread owns it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libs.transfer.api import TransferFailure
from libs.transfer.rooms.offer import OfferRoom
from libs.transfer.wire import Want
from proto.errors import ErrorCode
from proto.ids import Room

__all__ = ["EARLY_LIMIT", "EarlyWant", "OfferTable"]

EARLY_LIMIT = 4096
"""Wants remembered before their offers; the oldest is refused beyond that."""
_CLOSED_LIMIT = 16384
"""Rooms remembered after their end; beyond that a late want waits out its own time."""
_USED = TransferFailure(ErrorCode.KV_TRANSFER_FAILED, "the room was used before")


@dataclass(frozen=True, slots=True)
class EarlyWant:
    """A want that came before its offer."""

    want: Want
    link: Any
    at: float


class OfferTable:
    """Open offers, early wants, and what became of closed rooms."""

    def __init__(self) -> None:
        self._offers: dict[Room, OfferRoom] = {}
        self._wants: OrderedDict[Room, EarlyWant] = OrderedDict()
        self._closed: OrderedDict[Room, TransferFailure] = OrderedDict()

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def early(self) -> int:
        """Wants that wait for their offer."""
        return len(self._wants)

    def offers(self) -> Iterator[OfferRoom]:
        """Iterate over a copy of the open offers."""
        return iter(tuple(self._offers.values()))

    def find(self, room: Room) -> OfferRoom | None:
        """Return the open offer of a room."""
        return self._offers.get(room)

    def open(self, offer: OfferRoom) -> EarlyWant | TransferFailure | None:
        """Enter an offer; return the want that waits for it, or why the room cannot be opened."""
        room = offer.room
        if room in self._offers:
            return _USED
        if room in self._closed:
            return self._closed[room]
        self._offers[room] = offer
        return self._wants.pop(room, None)

    def ask(self, early: EarlyWant) -> OfferRoom | TransferFailure | EarlyWant | None:
        """Enter a want.

        Returns:
            the offer it matches, why it is refused, or None: it is remembered. An `EarlyWant` is an
            older one that had to make place, to be refused by the caller.
        """
        room = early.want.room
        if room in self._closed:
            return self._closed[room]
        offer = self._offers.get(room)
        if offer is not None:
            return _USED if offer.link is not None else offer
        if room in self._wants:
            return _USED
        self._wants[room] = early
        return self._wants.popitem(last=False)[1] if len(self._wants) > EARLY_LIMIT else None

    def close(self, room: Room, failure: TransferFailure | None) -> None:
        """Take a room out; a later want or offer of it learns of `failure`, or that it was used."""
        self._offers.pop(room, None)
        self._wants.pop(room, None)
        self._closed[room] = failure or _USED
        if len(self._closed) > _CLOSED_LIMIT:
            self._closed.popitem(last=False)

    def withdraw(self, room: Room, link: Any, failure: TransferFailure) -> bool:
        """Close a room whose want was early and came over `link`; return whether there was one."""
        early = self._wants.get(room)
        if early is None or early.link is not link:
            return False
        self.close(room, failure)
        return True

    def forget(self, link: Any, failure: TransferFailure) -> None:
        """Close all rooms whose early wants came over a link that is gone."""
        for room in [room for room, early in self._wants.items() if early.link is link]:
            self.close(room, failure)

    def expired(self, before: float) -> list[EarlyWant]:
        """Take out and return the early wants that are older than `before`."""
        old = [early for early in self._wants.values() if early.at < before]
        for early in old:
            del self._wants[early.want.room]
        return old
