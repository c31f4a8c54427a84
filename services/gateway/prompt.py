"""The token ids of a prompt, which may be worked out while a message is under way."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PromptIds"]

_ID_BYTES = 4


class PromptIds:
    """Token ids, little-endian uint32.

    Args:
        ids: they, or what works them out when they are first asked for.
        most: a number of tokens that there certainly are no more of, where they are not known.
    """

    __slots__ = ("_ids", "_most", "_work")

    def __init__(self, ids: bytes | Callable[[], bytes], *, most: int = 0) -> None:
        self._most = most
        self._work: Callable[[], bytes] | None = None
        self._ids = b""
        if isinstance(ids, bytes):
            self._ids = ids
        else:
            self._work = ids

    @property
    def known(self) -> bool:
        """Whether asking for the ids takes no time."""
        return self._work is None

    @property
    def ids(self) -> bytes:
        """They."""
        work = self._work
        if work is not None:
            self._ids = work()
            self._work = None
        return self._ids

    @property
    def tokens(self) -> int:
        """How many there are."""
        ids = self._ids if self._work is None else self.ids
        return len(ids) // _ID_BYTES

    @property
    def most(self) -> int:
        """How many there are at most; known without working them out."""
        return self.tokens if self._work is None else self._most

    def settle(self) -> None:
        """Work them out now."""
        _ = self.ids
