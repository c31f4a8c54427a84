"""Device pages, with torch's CPU as the device: the same calls, without a stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libs.sglang_plugins.pools import device_pool
from libs.transfer.api import KvLayout, PagePool
from libs.transfer.device import DeviceStore, is_on_device
from libs.transfer.pages import PageStore

SIZES, ROWS, PAGES = (16, 48, 8), (8, 24), 12
LAYOUT = KvLayout(page_bytes=SIZES, row_bytes=ROWS, page_tokens=1, compat="")


def _memory(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    pages = [rng.integers(0, 256, (PAGES, size), np.uint8) for size in SIZES]
    return pages, [rng.integers(0, 256, (3, size), np.uint8) for size in ROWS]


@given(st.lists(st.integers(0, PAGES - 1), max_size=PAGES, unique=True), st.integers(0, 2))
def test_pages_on_a_device_have_the_layout_of_pages_on_the_host(
    places: list[int], row: int
) -> None:
    """What one store gathers the other scatters, page by page and row by row."""
    pages, rows = _memory(1)
    copies, copied_rows = _memory(2)
    host = PageStore(LAYOUT, PagePool(copies), PagePool(copied_rows))
    device = DeviceStore(LAYOUT, [torch.from_numpy(page) for page in pages], PagePool(rows))
    numbers = np.array(places, np.int64)
    slab = np.zeros(len(places) * sum(SIZES) + sum(ROWS), np.uint8)
    used = device.gather_pages(numbers, slab)
    used += device.gather_row(row, slab[used:])
    assert used == len(slab)
    assert host.scatter_pages(numbers, slab) + host.scatter_row(row, slab[used - sum(ROWS) :])
    for mine, theirs in zip(pages, copies, strict=True):
        assert (mine[places] == theirs[places]).all()
    back = np.zeros_like(slab)
    host.gather_pages(numbers, back)
    for page in pages:
        page[:] = 0
    device.scatter_pages(numbers, back)
    for mine, theirs in zip(pages, copies, strict=True):
        assert (mine[places] == theirs[places]).all()
        assert mine.sum() == theirs[places].sum()


def test_a_wrong_shape_is_refused() -> None:
    """A buffer that the layout does not describe ends the start, not a transfer."""
    pages, rows = _memory(1)
    tensors = [torch.from_numpy(page) for page in pages]
    with pytest.raises(ValueError, match="2 page buffers, the layout has 3"):
        DeviceStore(LAYOUT, tensors[:2], PagePool(rows))
    with pytest.raises(ValueError, match=r"page buffer 1 is not an array of \(n, 48\) bytes"):
        DeviceStore(LAYOUT, [tensors[0], tensors[0], tensors[2]], PagePool(rows))
    with pytest.raises(ValueError, match="page buffer 0 is not contiguous"):
        DeviceStore(LAYOUT, [tensors[0].T.contiguous().T, *tensors[1:]], PagePool(rows))


def test_nobody_reads_device_memory_by_its_address() -> None:
    """The cma lane is not for devices."""
    pages, rows = _memory(1)
    store = DeviceStore(LAYOUT, [torch.from_numpy(page) for page in pages], PagePool(rows))
    with pytest.raises(ValueError, match="no runs"):
        store.runs(np.array([1]), None)


def test_buffers_with_the_array_interface_are_on_a_device() -> None:
    """SGLang's device pool is told from arrays in host memory."""
    assert is_on_device(device_pool([4096], [64], [16]))
    assert not is_on_device([np.zeros((4, 16), np.uint8)])
