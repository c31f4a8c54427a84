"""Paged KV memory in numpy, and who holds which pages of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from libs.engine.script.answer import U64, place_weights

__all__ = ["ROW_WORDS", "KvMemory", "PageAllocator"]

I64 = npt.NDArray[np.int64]

ROW_WORDS = 4
"""Words of an auxiliary row: room, first token, prompt tokens, digest behind the first token."""


class PageAllocator:
    """A free list of numbered things; the one freed last is given out first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def used(self) -> int:
        """How many are held."""
        return self.total - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Return `count` of them, or None if there are not so many."""
        if count > len(self._free):
            return None
        cut = len(self._free) - count
        taken = self._free[cut:]
        del self._free[cut:]
        return taken

    def give(self, numbers: list[int]) -> None:
        """Take back what was given out."""
        self._free += numbers


class KvMemory:
    """All KV buffers as one array, seen by token here and by page by the data plane.

    A page keeps its old contents when it changes hands: reading what was not written is visible.
    """

    def __init__(
        self, *, pages: int, page_size: int, buffers: int, words: int, rows: int, places: int
    ) -> None:
        self.page_size = page_size
        self.buffers = buffers
        self.words = words
        self._stride = pages * page_size
        self._flat: U64 = np.zeros((buffers * self._stride, words), dtype=np.uint64)
        self._offsets = np.arange(buffers, dtype=np.int64)[:, None] * self._stride
        self._rows: U64 = np.zeros((rows, ROW_WORDS), dtype=np.uint64)
        self._weights = place_weights(places)

    @property
    def page_arrays(self) -> list[npt.NDArray[np.uint8]]:
        """The KV buffers, each as bytes of shape (pages, bytes of a page)."""
        cut = self._stride
        page_bytes = self.page_size * self.words * 8
        return [
            self._flat[place * cut : (place + 1) * cut].view(np.uint8).reshape(-1, page_bytes)
            for place in range(self.buffers)
        ]

    @property
    def row_array(self) -> npt.NDArray[np.uint8]:
        """The auxiliary rows as bytes, of shape (rows, bytes of a row)."""
        return self._rows.view(np.uint8)

    def places(self, pages: Sequence[int]) -> I64:
        """Return where the tokens of a request lie, of shape (buffers, tokens that fit)."""
        first = np.asarray(pages, dtype=np.int64) * self.page_size
        own = (first[:, None] + np.arange(self.page_size)).reshape(1, -1)
        return own + self._offsets

    def place(self, pages: Sequence[int], token: int) -> int:
        """Return where one token of a request lies in the first buffer."""
        page, rest = divmod(token, self.page_size)
        return pages[page] * self.page_size + rest

    def write(self, places: I64, contents: U64) -> None:
        """Write contents of shape (tokens, words of all buffers) to places of the first buffer."""
        by_buffer = contents.reshape(len(places), self.buffers, self.words).transpose(1, 0, 2)
        self._flat[self._offsets + places] = by_buffer

    def read(self, spans: list[I64]) -> U64:
        """Return one weighted sum a span; a span is the places of a request in one buffer."""
        sizes = [len(span) for span in spans]
        where = spans[0] if len(spans) == 1 else np.concatenate(spans)
        # Whole rows: several times as fast as an index.
        found = self._flat.take(where, axis=0)
        sums = found[:, 0] + found[:, 1] if self.words > 1 else found[:, 0]
        for word in range(2, self.words):
            sums = sums + found[:, word]
        parts = [self._weights[:size] for size in sizes]
        sums *= parts[0] if len(parts) == 1 else np.concatenate(parts)
        starts = list(accumulate(sizes[:-1], initial=0))
        return np.add.reduceat(sums, starts)

    def word(self, place: int) -> int:
        """Return the first word at a place."""
        return int(self._flat[place, 0])

    def first_words(self, places: I64) -> list[int]:
        """Return the first word at each place."""
        return self._flat[places, 0].tolist()

    def set_row(self, row: int, values: Sequence[int]) -> None:
        """Write an auxiliary row."""
        self._rows[row] = np.array(values, dtype=np.uint64)

    def row(self, row: int) -> list[int]:
        """Read an auxiliary row."""
        return self._rows[row].tolist()

    def corrupt(self, places: I64) -> None:
        """Change one bit at each place."""
        self._flat[places, 0] ^= np.uint64(1 << 40)
