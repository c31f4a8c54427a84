"""Pools are in huge pages where the kernel has them."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from libs.transfer.advice import advise_huge
from libs.transfer.api import KvLayout, PagePool
from libs.transfer.pages import PageStore

KNOWN = Path("/sys/kernel/mm/transparent_hugepage").exists()
HUGE = 2 << 20


def plain(size: int) -> np.ndarray:
    """Return memory about which nobody has advised anything."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def advised(buffer: np.ndarray) -> bool:
    """Return what the kernel says of the middle of a buffer."""
    middle, inside = buffer.ctypes.data + buffer.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, end = (int(edge, 16) for edge in head.split("-"))
            inside = first <= middle < end
        elif inside and head == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError("the buffer is in no mapping")


@pytest.mark.skipif(not KNOWN, reason="this kernel has no huge pages")
def test_pools_of_pages_are_advised() -> None:
    """The store of an engine asks for huge pages behind each large buffer of its pages."""
    pools = [plain(4 * HUGE).reshape(-1, 4096) for _ in range(2)]
    assert not any(advised(pool) for pool in pools)
    layout = KvLayout(page_bytes=(4096, 4096), row_bytes=(), page_tokens=1, compat="")
    PageStore(layout, PagePool(pools), PagePool([]))
    assert all(advised(pool) for pool in pools)


@pytest.mark.parametrize("size", [1, 4096, HUGE - 1])
def test_small_buffers_are_left_alone(size: int) -> None:
    """Nothing is asked for where no whole huge page fits."""
    assert not advise_huge(np.zeros(size, np.uint8))
