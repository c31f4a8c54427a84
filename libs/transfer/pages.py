"""Copying pages and rows between paged memory and a slab.

Pages of every buffer are numbered alike, so one list of page numbers serves all buffers. Both
copies release the GIL where there is much to copy. Whoever calls holds the lock of the room that
owns the pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from libs.transfer.advice import advise_huge
from libs.transfer.api import KvLayout, PagePool
from libs.transfer.reach import ENTRY, Table

__all__ = ["PageStore", "Pages", "as_pages"]

_LEAST_MEAN = 4
"""Where runs have so many pages on average they are copied one by one, which spares the work for
each page; eight times as many where no buffers can be copied together."""
_MOST_PAGES = 4
"""Where pages are no more than so many times the buffers, each is copied out of all of them at
once; where they are more, all are copied out of each buffer."""
_LEAST_RUNS = 256 << 10
"""Fewer bytes are copied page by page: there is no time to look for runs."""
_MOST_HELD = 1 << 20
"""Up to so many bytes are copied with the GIL in hand: whoever gives it away to a busy thread gets
it back after a switch interval, which is longer."""

Bytes = npt.NDArray[np.uint8]
Pages = npt.NDArray[np.int64]


class _Block(NamedTuple):
    """Buffers that follow each other at equal distances, as one array: one copy serves them all.

    Besides the time for each, numpy would let go of the GIL and have to get it back for each.
    """

    buffers: int
    page_bytes: int
    bytes: Bytes
    """A row for each buffer."""
    pages: npt.NDArray[np.void]
    """The same, whose items are whole pages."""


def as_pages(pages: Sequence[int] | Pages, limit: int) -> Pages:
    """Return an own copy of page numbers.

    Raises:
        ValueError: a number is outside the pool, or the list is not flat.
    """
    own = np.array(pages, dtype=np.int64)
    if own.ndim != 1:
        raise ValueError("page numbers must be a flat list")
    if own.size and (own.min() < 0 or own.max() >= limit):
        raise ValueError(f"page number outside the pool of {limit} pages")
    return own


class PageStore:
    """The pages and rows of one engine, as the plane may touch them."""

    def __init__(self, layout: KvLayout, pages: PagePool, rows: PagePool) -> None:
        self.layout = layout
        self.page_bytes = sum(layout.page_bytes)
        self.row_bytes = sum(layout.row_bytes)
        self._pages = _columns("page", pages, layout.page_bytes)
        for buffer in pages.buffers:
            advise_huge(buffer)
        self._blocks = _blocks(self._pages, layout.page_bytes)
        self._rows = _columns("row", rows, layout.row_bytes)
        self._row_blocks = _blocks(self._rows, layout.row_bytes)
        self._page_bases = _bases(self._pages)
        self._row_bases = _bases(self._rows)
        self._page_sizes = np.array(layout.page_bytes, np.int64)
        self._row_sizes = np.array(layout.row_bytes, np.int64)
        self.page_count = min((len(column) for column in self._pages), default=0)
        self.row_count = min((len(column) for column in self._rows), default=0)

    def check_row(self, row: int) -> int:
        """Return `row`, which may be anything if the layout has no rows.

        Raises:
            ValueError: it is outside the pool.
        """
        if self._rows and not 0 <= row < self.row_count:
            raise ValueError(f"row {row} is outside the pool of {self.row_count} rows")
        return row

    def gather_pages(self, pages: Pages, slab: Bytes) -> int:
        """Copy pages into the start of `slab`, buffer by buffer; return the bytes written."""
        runs = self._worthwhile_runs(pages)
        if runs is None:
            return _gather(self._blocks, pages, slab)
        return self._move_runs(runs, slab, gather=True)

    def scatter_pages(self, pages: Pages, slab: Bytes) -> int:
        """Copy the start of `slab` into pages; return the bytes read."""
        runs = self._worthwhile_runs(pages)
        if runs is None:
            return _scatter(self._blocks, pages, slab)
        return self._move_runs(runs, slab, gather=False)

    def gather_row(self, row: int, slab: Bytes) -> int:
        """Copy one row of each auxiliary buffer into `slab`; return the bytes written."""
        return _gather(self._row_blocks, np.array([row]), slab)

    def scatter_row(self, row: int, slab: Bytes) -> int:
        """Copy the start of `slab` into one row of each auxiliary buffer; return the bytes read."""
        return _scatter(self._row_blocks, np.array([row]), slab)

    def run_count(self, pages: Pages, row: int | None) -> int:
        """Return how many runs pages and a row are in; see `runs`."""
        runs = 1 + int(np.count_nonzero(pages[1:] - pages[:-1] != 1)) if len(pages) else 0
        return runs * len(self._pages) + (0 if row is None else len(self._rows))

    def runs(self, pages: Pages, row: int | None) -> Table:
        """Return where pages and a row are, in the order in which they are gathered."""
        cuts = (pages[1:] - pages[:-1] != 1).nonzero()[0]
        runs = len(cuts) + 1 if len(pages) else 0
        paged = runs * len(self._page_bases)
        table = np.empty(paged + (0 if row is None else len(self._row_bases)), ENTRY)
        if runs == 1:
            table["at"][:paged] = self._page_bases + int(pages[0]) * self._page_sizes
            table["length"][:paged] = len(pages) * self._page_sizes
        elif runs:
            self._page_runs(pages, cuts + 1, table[:paged])
        if row is not None:
            table["at"][paged:] = self._row_bases + row * self._row_sizes
            table["length"][paged:] = self._row_sizes
        return table

    def _worthwhile_runs(self, pages: Pages) -> list[tuple[int, int]] | None:
        """Return runs of neighbouring pages; None where pages are better copied one by one."""
        if len(pages) * self.page_bytes < _LEAST_RUNS:
            return None
        alone = 8 * len(self._blocks) // max(1, len(self._pages))
        return _long_runs(pages, _LEAST_MEAN * max(1, alone))

    def _move_runs(self, runs: list[tuple[int, int]], slab: Bytes, *, gather: bool) -> int:
        """Copy runs between pages and a slab, each in all buffers of a block at once."""
        pages, at = sum(count for _, count in runs), 0
        held = pages * self.page_bytes <= _MOST_HELD
        for block in self._blocks:
            size = block.page_bytes
            end = at + block.buffers * pages * size
            there, done = slab[at:end].reshape(block.buffers, -1), 0
            for first, count in runs:
                run = block.bytes[:, first * size : (first + count) * size]
                part = there[:, done : done + count * size]
                if gather:
                    _copy(run, part, held=held)
                else:
                    _copy(part, run, held=held)
                done += count * size
            at = end
        return at

    def _page_runs(self, pages: Pages, cuts: Pages, table: Table) -> None:
        """Write where each run of pages is in each buffer; `cuts` are where a new run begins."""
        edges = np.empty(len(cuts) + 2, np.int64)
        edges[0], edges[1:-1], edges[-1] = 0, cuts, len(pages)
        first, counts = edges[:-1], edges[1:] - edges[:-1]
        square = table.reshape(len(self._page_bases), -1)
        sizes = self._page_sizes[:, None]
        square["at"] = self._page_bases[:, None] + pages[first][None, :] * sizes
        square["length"] = counts[None, :] * sizes


def _blocks(columns: list[npt.NDArray[np.void]], sizes: tuple[int, ...]) -> list[_Block]:
    """Cut buffers of pages into as few blocks as there can be."""
    found: list[_Block] = []
    bases, first = _bases(columns).tolist(), 0
    while first < len(columns):
        length, size = len(columns[first]), sizes[first]
        # Two that would overlap are none.
        step = bases[first + 1] - bases[first] if first + 1 < len(columns) else 0
        end = first + 1
        while (
            end < len(columns)
            and abs(step) >= length * size
            and bases[end] - bases[end - 1] == step
            and (len(columns[end]), sizes[end]) == (length, size)
        ):
            end += 1
        count, memory = end - first, columns[first].view(np.uint8).reshape(-1)
        found.append(
            _Block(
                count,
                size,
                as_strided(memory, (count, length * size), (step, 1)),
                as_strided(columns[first], (count, length), (step, size)),
            )
        )
        first = end
    return found


def _bases(columns: list[npt.NDArray[np.void]]) -> npt.NDArray[np.int64]:
    return np.array([column.ctypes.data for column in columns], np.int64)


def _columns(what: str, pool: PagePool, sizes: tuple[int, ...]) -> list[npt.NDArray[np.void]]:
    """Return each buffer as a flat array whose items are whole pages, which copies fastest."""
    if len(pool.buffers) != len(sizes):
        raise ValueError(f"{len(pool.buffers)} {what} buffers, the layout has {len(sizes)}")
    columns: list[npt.NDArray[np.void]] = []
    for place, (buffer, size) in enumerate(zip(pool.buffers, sizes, strict=True)):
        if buffer.shape[1:] != (size,) or buffer.dtype != np.uint8:
            raise ValueError(f"{what} buffer {place} is not an array of (n, {size}) bytes")
        if not buffer.flags.c_contiguous or not buffer.flags.writeable:
            raise ValueError(f"{what} buffer {place} is not contiguous and writeable")
        columns.append(buffer.view(np.dtype((np.void, size)))[:, 0])
    return columns


def _long_runs(pages: Pages, least_mean: int) -> list[tuple[int, int]] | None:
    """Return runs of neighbouring pages: the first of each, and how many; None if they are short.

    One run is never short.
    """
    cuts = (pages[1:] - pages[:-1] != 1).nonzero()[0] + 1
    if len(cuts) and len(pages) < least_mean * (len(cuts) + 1):
        return None
    edges = [0, *cuts.tolist(), len(pages)]
    return [(int(pages[a]), b - a) for a, b in itertools.pairwise(edges) if b > a]


def _gather(blocks: list[_Block], items: Pages, slab: Bytes) -> int:
    count, at = len(items), 0
    if not count:
        return 0
    for block in blocks:
        size = block.buffers * count * block.page_bytes
        part = slab[at : at + size]
        if count <= _MOST_PAGES * block.buffers:
            _by_page(block, items.tolist(), part, gather=True)
        else:
            target = part.view(block.pages.dtype).reshape(block.buffers, count)
            for buffer in range(block.buffers):
                # Numbers were checked on entry; "clip" spares numpy a hidden second copy.
                np.take(block.pages[buffer], items, out=target[buffer], mode="clip")
        at += size
    return at


def _scatter(blocks: list[_Block], items: Pages, slab: Bytes) -> int:
    count, at = len(items), 0
    if not count:
        return 0
    for block in blocks:
        size = block.buffers * count * block.page_bytes
        part = slab[at : at + size]
        if size <= _MOST_HELD and count <= _MOST_PAGES * block.buffers:
            _by_page(block, items.tolist(), part, gather=False)
        else:
            block.pages[:, items] = part.view(block.pages.dtype).reshape(block.buffers, count)
        at += size
    return at


def _by_page(block: _Block, items: list[int], slab: Bytes, *, gather: bool) -> None:
    """Copy page after page, each in all buffers at once."""
    size, held = block.page_bytes, block.buffers * block.page_bytes <= _MOST_HELD
    there = slab.view(block.pages.dtype).reshape(block.buffers, -1)
    for place, page in enumerate(items):
        if not held:
            mine = block.bytes[:, page * size : (page + 1) * size]
            part = slab.reshape(block.buffers, -1)[:, place * size : (place + 1) * size]
        else:
            mine, part = block.pages[:, page], there[:, place]
        if gather:
            part[:] = mine
        else:
            mine[:] = part


def _copy(source: npt.NDArray[Any], target: npt.NDArray[Any], *, held: bool) -> None:
    """Copy a run in each of some buffers."""
    if held:
        # numpy gives the GIL away for many items only, and that are as many as there are buffers.
        whole = np.dtype((np.void, source.shape[1]))
        source, target = source.view(whole), target.view(whole)
    target[:] = source
