"""Pages in device memory: copied on a stream of their own, to and from slabs in host memory.

Buffers come as anything with the CUDA array interface. The rows stay in host memory, where engines
keep them. Whoever pushes pages has waited for the engine's events before, and every copy here has
ended when its call returns, so a room that is done needs no further waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from libs.transfer.api import KvLayout, PagePool
from libs.transfer.pages import Pages, PageStore
from libs.transfer.reach import Table

__all__ = ["DeviceStore", "is_on_device"]

Bytes = npt.NDArray[np.uint8]

INTERFACE: Final = "__cuda_array_interface__"


def is_on_device(buffers: Sequence[Any]) -> bool:
    """Return whether pages are in device memory."""
    return any(hasattr(buffer, INTERFACE) for buffer in buffers)


class DeviceStore:
    """The pages of one engine in device memory, and its rows; what `PageStore` is on the host.

    Args:
        layout: the shape of both.
        pages: one buffer each of shape (pages, page_bytes): device arrays, or torch tensors.
        rows: rows in host memory.

    Raises:
        ValueError: a buffer does not have that shape.
    """

    def __init__(self, layout: KvLayout, pages: Sequence[Any], rows: PagePool) -> None:
        self._torch: Any = import_module("torch")
        self.layout = layout
        self.page_bytes = sum(layout.page_bytes)
        self.row_bytes = sum(layout.row_bytes)
        self._rows = PageStore(
            KvLayout(page_bytes=(), row_bytes=layout.row_bytes, page_tokens=1, compat=""),
            PagePool(()),
            rows,
        )
        self.row_count = self._rows.row_count
        self._columns = [self._column(buffer) for buffer in pages]
        self._check()
        self.page_count = min((len(column) for column in self._columns), default=0)
        self._device = self._columns[0].device if self._columns else self._torch.device("cpu")
        cuda = self._device.type == "cuda"
        self._stream = self._torch.cuda.Stream(self._device) if cuda else None
        self._scratch: Any = self._torch.empty(0, dtype=self._torch.uint8, device=self._device)

    def check_row(self, row: int) -> int:
        """Return `row`, which may be anything if the layout has no rows.

        Raises:
            ValueError: it is outside the pool.
        """
        return self._rows.check_row(row)

    def gather_pages(self, pages: Pages, slab: Bytes) -> int:
        """Copy pages into the start of `slab`, buffer by buffer; return the bytes written."""
        total = len(pages) * self.page_bytes
        if not total:
            return 0
        with self._on_stream():
            scratch, index = self._room(total), self._index(pages)
            at = 0
            for column, size in zip(self._columns, self.layout.page_bytes, strict=True):
                end = at + len(pages) * size
                self._torch.index_select(column, 0, index, out=scratch[at:end].view(-1, size))
                at = end
            self._host(slab, total).copy_(scratch, non_blocking=True)
        self._wait()
        return total

    def scatter_pages(self, pages: Pages, slab: Bytes) -> int:
        """Copy the start of `slab` into pages; return the bytes read."""
        total = len(pages) * self.page_bytes
        if not total:
            return 0
        with self._on_stream():
            scratch, index = self._room(total), self._index(pages)
            scratch.copy_(self._host(slab, total), non_blocking=True)
            at = 0
            for column, size in zip(self._columns, self.layout.page_bytes, strict=True):
                end = at + len(pages) * size
                column.index_copy_(0, index, scratch[at:end].view(-1, size))
                at = end
        self._wait()
        return total

    def gather_row(self, row: int, slab: Bytes) -> int:
        """Copy one row of each auxiliary buffer into `slab`; return the bytes written."""
        return self._rows.gather_row(row, slab)

    def scatter_row(self, row: int, slab: Bytes) -> int:
        """Copy the start of `slab` into one row of each auxiliary buffer; return the bytes read."""
        return self._rows.scatter_row(row, slab)

    def runs(self, pages: Pages, row: int | None) -> Table:
        """Refuse: no other process can read device memory by its address.

        Raises:
            ValueError: always; the plane opens no lane that would ask.
        """
        raise ValueError("device memory has no runs that another process could read")

    def _column(self, buffer: Any) -> Any:
        if isinstance(buffer, self._torch.Tensor):
            return buffer
        return self._torch.as_tensor(buffer, device="cuda")

    def _check(self) -> None:
        sizes = self.layout.page_bytes
        if len(self._columns) != len(sizes):
            raise ValueError(f"{len(self._columns)} page buffers, the layout has {len(sizes)}")
        for place, (column, size) in enumerate(zip(self._columns, sizes, strict=True)):
            if column.dim() != 2 or column.shape[1] != size or column.element_size() != 1:  # noqa: PLR2004
                raise ValueError(f"page buffer {place} is not an array of (n, {size}) bytes")
            if not column.is_contiguous():
                raise ValueError(f"page buffer {place} is not contiguous")

    def _on_stream(self) -> Any:
        return nullcontext() if self._stream is None else self._torch.cuda.stream(self._stream)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _index(self, pages: Pages) -> Any:
        return self._torch.from_numpy(pages).to(self._device, non_blocking=True)

    def _room(self, size: int) -> Any:
        """Return device memory for the pages of one chunk, side by side; kept for the next."""
        if self._scratch.numel() < size:
            self._scratch = self._torch.empty(size, dtype=self._torch.uint8, device=self._device)
        return self._scratch[:size]

    def _host(self, slab: Bytes, size: int) -> Any:
        return self._torch.from_numpy(slab[:size])
