"""Paged KV memory in numpy, and who holds which pages of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from libs.engine.script.answer import U64, place_weights

__all__ = ["ROW_WORDS", "KvMemory", "PageAllocator", "Spans"]

I64 = npt.NDArray[np.int64]

ROW_WORDS = 4
"""Words of an auxiliary row: room, first token, prompt tokens, digest behind the first token."""

_AHEAD = 64
"""Steps for which `Spans` keeps room."""


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
        found = self.weigh(np.concatenate(spans), self.weights_of(sizes))
        return np.add.reduceat(found, _starts(sizes))

    def weigh(self, where: I64, weights: U64) -> U64:
        """Return the sum of the words at each place, times its weight."""
        # Whole rows: several times as fast as an index.
        found = self._flat.take(where, axis=0)
        sums = found[:, 0] + found[:, 1] if self.words > 1 else found[:, 0]
        for word in range(2, self.words):
            sums = sums + found[:, word]
        sums *= weights
        return sums

    def weights_of(self, sizes: Sequence[int]) -> U64:
        """Return the weights of all places of some spans."""
        return np.concatenate([self._weights[:size] for size in sizes])

    def offset(self, buffers: I64) -> I64:
        """Return how far the places of buffers are from those of the first one."""
        return self._offsets[buffers, 0]

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


class Spans:
    """What some answers read, kept from step to step: each step only adds a token to each.

    Room is kept for some steps ahead; what is not written yet weighs nothing.

    Args:
        memory: what is read.
        tables: the places of each request, of shape (buffers, tokens that fit).
        written: tokens of each request whose KV is in memory.
        turns: which buffer each answer reads in the first step; the others follow in turn.
    """

    def __init__(
        self, memory: KvMemory, tables: Sequence[I64], written: Sequence[int], turns: Sequence[int]
    ) -> None:
        sizes = [
            min(table.shape[1], count + _AHEAD)
            for table, count in zip(tables, written, strict=True)
        ]
        starts = _starts(sizes)
        self.left = min(size - count for size, count in zip(sizes, written, strict=True))
        """Steps for which there is room."""
        self._memory = memory
        self._sizes = sizes
        self._starts = np.array(starts, dtype=np.int64)
        self._ends = self._starts + np.array(written, dtype=np.int64)
        own = [table[0, :size] for table, size in zip(tables, sizes, strict=True)]
        self._own: I64 = np.concatenate(own)
        self._full = memory.weights_of(sizes)
        self._weights = self._full.copy()
        for start, count, size in zip(starts, written, sizes, strict=True):
            self._weights[start + count : start + size] = 0
        self._turns = np.array(turns, dtype=np.int64)
        self._turn = 0
        self._where: list[I64 | None] = [None] * memory.buffers
        """All places, for each turn that has come."""

    def write(self, contents: U64) -> None:
        """Write the KV of one more token of each request."""
        ends = self._ends
        self._memory.write(self._own[ends], contents)
        self._weights[ends] = self._full[ends]
        ends += 1
        self.left -= 1

    def read(self) -> U64:
        """Return the weighted sum of each request, in the buffer whose turn it is."""
        turn, buffers = self._turn, len(self._where)
        where = self._where[turn]
        if where is None:
            offsets = self._memory.offset((self._turns + turn) % buffers)
            where = self._where[turn] = self._own + np.repeat(offsets, self._sizes)
        self._turn = (turn + 1) % buffers
        return np.add.reduceat(self._memory.weigh(where, self._weights), self._starts)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each of some spans begins when they stand one behind the other."""
    return list(accumulate(sizes[:-1], initial=0))
