"""What is moved: models' KV layouts, page sizes, and pages that lie together or apart."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LAYOUTS", "Cell", "Layout", "cells", "memory", "places"]

KIB, MIB = 1 << 10, 1 << 20
_HUGE = 2 * MIB


@dataclass(frozen=True, slots=True)
class Layout:
    """The KV of one model."""

    name: str
    buffers: int
    """Layers, twice: keys and values."""
    token_bytes: int
    """Bytes of one token in one buffer: KV heads, head dimension, bytes a value."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    layout: Layout
    page_tokens: int
    size: int
    """Bytes asked for; the pages that fit are moved, at least one."""
    apart: bool
    """Whether no two pages are neighbours."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in one buffer."""
        return self.layout.token_bytes * self.page_tokens

    @property
    def pages(self) -> int:
        """Pages that are moved."""
        return max(1, self.size // (self.page_bytes * self.layout.buffers))

    @property
    def moved(self) -> int:
        """Bytes that are moved."""
        return self.pages * self.page_bytes * self.layout.buffers

    @property
    def pieces(self) -> int:
        """Runs of neighbouring bytes."""
        return self.layout.buffers * (self.pages if self.apart else 1)

    @property
    def name(self) -> str:
        """For a table."""
        order = "apart" if self.apart else "together"
        return f"{self.layout.name} page {self.page_tokens} {order}"


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("smollm2", 60, 384),
        Layout("8b", 64, 2048),
        Layout("70b", 160, 2048),
    )
}
_SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
_DEFAULT = (("smollm2", 1), ("8b", 16))
_DEFAULT_SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB)


def cells(*, full: bool) -> list[Cell]:
    """Return what to measure: some of each kind, or everything.

    A size that no whole page comes near is left out.
    """
    kinds = [(name, page) for name in LAYOUTS for page in (1, 16, 64)] if full else _DEFAULT
    found = [
        Cell(LAYOUTS[name], page, size, apart)
        for name, page in kinds
        for size in (_SIZES if full else _DEFAULT_SIZES)
        for apart in (False, True)
    ]
    return [cell for cell in found if cell.moved <= 2 * cell.size]


def memory(size: int) -> npt.NDArray[np.uint8]:
    """Return touched memory in huge pages where the system has them: all are measured with it.

    The kernel reads another process' memory twice as fast there. It is a mapping of its own: an
    allocator would also give memory back that is in small pages.
    """
    length = -(-size // _HUGE) * _HUGE + _HUGE
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    given = np.frombuffer(mapping, np.uint8)
    begin = -given.ctypes.data % _HUGE
    aligned = given[begin : begin + size]
    aligned[:] = 1
    return aligned


def places(cell: Cell, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the page numbers that a cell moves, out of twice as many."""
    if not cell.apart:
        return np.arange(cell.pages)
    return 2 * np.random.default_rng(seed).permutation(cell.pages)
