"""Copying pages and rows between paged memory and a slab.

Pages of every buffer are numbered alike, so one list of page numbers serves all buffers. Both
copies release the GIL where there is much to copy. Whoever calls holds the lock of the room that
owns the pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.advice import advise_huge
from libs.transfer.api import KvLayout, PagePool
from libs.transfer.reach import ENTRY, Table

__all__ = ["PageStore", "Pages", "as_pages"]

_LEAST_MEAN = 32
"""Where runs have so many pages on average they are copied one by one, which spares numpy's search
for each page."""
_MOST_VIEWED = 256 << 10
"""Up to so many bytes are copied with the GIL in hand, which halves the cost of each piece."""

Bytes = npt.NDArray[np.uint8]
Pages = npt.NDArray[np.int64]


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
        self._page_columns = [column.view(np.uint8).reshape(-1) for column in self._pages]
        self._page_views = [column.data for column in self._page_columns]
        self._rows = _columns("row", rows, layout.row_bytes)
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
        runs = _long_runs(pages)
        if runs is None:
            return _gather(self._pages, self.layout.page_bytes, pages, slab)
        columns, target = self._views(len(pages) * self.page_bytes, slab)
        at = 0
        for column, size in zip(columns, self.layout.page_bytes, strict=True):
            for first, count in runs:
                end = at + count * size
                target[at:end] = column[first * size : (first + count) * size]
                at = end
        return at

    def scatter_pages(self, pages: Pages, slab: Bytes) -> int:
        """Copy the start of `slab` into pages; return the bytes read."""
        runs = _long_runs(pages)
        if runs is None:
            return _scatter(self._pages, self.layout.page_bytes, pages, slab)
        columns, source = self._views(len(pages) * self.page_bytes, slab)
        at = 0
        for column, size in zip(columns, self.layout.page_bytes, strict=True):
            for first, count in runs:
                end = at + count * size
                column[first * size : (first + count) * size] = source[at:end]
                at = end
        return at

    def gather_row(self, row: int, slab: Bytes) -> int:
        """Copy one row of each auxiliary buffer into `slab`; return the bytes written."""
        return _gather(self._rows, self.layout.row_bytes, np.array([row]), slab)

    def scatter_row(self, row: int, slab: Bytes) -> int:
        """Copy the start of `slab` into one row of each auxiliary buffer; return the bytes read."""
        return _scatter(self._rows, self.layout.row_bytes, np.array([row]), slab)

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

    def _views(self, total: int, slab: Bytes) -> tuple[Any, Any]:
        """Return the page buffers and a slab as what copies so many bytes fastest."""
        if total <= _MOST_VIEWED:
            return self._page_views, slab.data
        return self._page_columns, slab

    def _page_runs(self, pages: Pages, cuts: Pages, table: Table) -> None:
        """Write where each run of pages is in each buffer; `cuts` are where a new run begins."""
        edges = np.empty(len(cuts) + 2, np.int64)
        edges[0], edges[1:-1], edges[-1] = 0, cuts, len(pages)
        first, counts = edges[:-1], edges[1:] - edges[:-1]
        square = table.reshape(len(self._page_bases), -1)
        sizes = self._page_sizes[:, None]
        square["at"] = self._page_bases[:, None] + pages[first][None, :] * sizes
        square["length"] = counts[None, :] * sizes


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


def _long_runs(pages: Pages) -> list[tuple[int, int]] | None:
    """Return runs of neighbouring pages: the first of each, and how many; None if they are short.

    One run is never short.
    """
    cuts = (pages[1:] - pages[:-1] != 1).nonzero()[0] + 1
    if len(cuts) and len(pages) < _LEAST_MEAN * (len(cuts) + 1):
        return None
    edges = [0, *cuts.tolist(), len(pages)]
    return [(int(pages[a]), b - a) for a, b in itertools.pairwise(edges) if b > a]


def _gather(
    columns: list[npt.NDArray[np.void]], sizes: tuple[int, ...], items: Pages, slab: Bytes
) -> int:
    count, at = len(items), 0
    if not count:
        return 0
    for column, size in zip(columns, sizes, strict=True):
        end = at + count * size
        # Numbers were checked on entry; "clip" spares numpy a hidden second copy.
        np.take(column, items, out=slab[at:end].view(column.dtype), mode="clip")
        at = end
    return at


def _scatter(
    columns: list[npt.NDArray[np.void]], sizes: tuple[int, ...], items: Pages, slab: Bytes
) -> int:
    count, at = len(items), 0
    if not count:
        return 0
    for column, size in zip(columns, sizes, strict=True):
        end = at + count * size
        column[items] = slab[at:end].view(column.dtype)
        at = end
    return at
