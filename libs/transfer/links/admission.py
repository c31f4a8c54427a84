"""How many chunks are under way from one engine, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Admission"]

Link = TypeVar("Link")


class Admission(Generic[Link]):
    """Gives out places for chunks; links that want one while there is none take turns.

    Args:
        places: chunks under way at most, to all peers together.
        wake: called with the link whose turn it is once there is a place.
    """

    def __init__(self, places: int, wake: Callable[[Link], None]) -> None:
        self._free = places
        self._wake = wake
        self._waiting: deque[Link] = deque()

    def take(self, link: Link) -> bool:
        """Take a place; a link that gets none is woken when it is its turn."""
        first = not self._waiting or self._waiting[0] is link
        if self._free and first:
            self._free -= 1
            if self._waiting:
                self._waiting.popleft()
            return True
        if link not in self._waiting:
            self._waiting.append(link)
        self._call()
        return False

    def give(self, places: int = 1) -> None:
        """Give places back."""
        self._free += places
        self._call()

    def leave(self, link: Link) -> None:
        """Forget a link that is over."""
        if link in self._waiting:
            self._waiting.remove(link)
        self._call()

    def _call(self) -> None:
        if self._free and self._waiting:
            self._wake(self._waiting[0])
