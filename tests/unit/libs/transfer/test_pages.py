from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.transfer import pages as copies
from libs.transfer.api import KvLayout, PagePool
from libs.transfer.pages import PageStore, as_pages

SIZES = (1, 24, 384, 384, 384)
ROWS = (3, 8)
PAGES = 40


def store(
    seed: int, gaps: tuple[int, ...] = (0, 0, 0, 64, 64)
) -> tuple[PageStore, list[np.ndarray], list[np.ndarray]]:
    """Return a store with random contents, and its buffers, which lie so far from each other."""
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 256, PAGES * sum(SIZES) + sum(gaps), np.uint8)
    pages, at = [], 0
    for size, gap in zip(SIZES, gaps, strict=True):
        at += gap
        pages.append(flat[at : at + PAGES * size].reshape(PAGES, size))
        at += PAGES * size
    rows = [rng.integers(0, 256, (4, size), np.uint8) for size in ROWS]
    layout = KvLayout(page_bytes=SIZES, row_bytes=ROWS, page_tokens=1, compat="")
    return PageStore(layout, PagePool(pages), PagePool(rows)), pages, rows


def named(table: np.ndarray) -> bytes:
    """Return the bytes that a table of runs names."""
    return b"".join(ctypes.string_at(int(run["at"]), int(run["length"])) for run in table)


@given(st.permutations(range(PAGES)), st.permutations(range(PAGES)), st.integers(0, PAGES))
def test_scattered_pages_are_copied(source: list[int], target: list[int], count: int) -> None:
    """Pages gathered from any places and scattered to any others are equal; the rest is whole."""
    one, there, _ = store(1)
    two, here, _ = store(2)
    untouched = [buffer.copy() for buffer in here]
    slab = np.zeros(PAGES * sum(SIZES), np.uint8)
    moved = one.gather_pages(as_pages(source[:count], PAGES), slab)
    assert moved == two.scatter_pages(as_pages(target[:count], PAGES), slab)
    assert moved == count * sum(SIZES)
    for a, b, old in zip(there, here, untouched, strict=True):
        assert (a[source[:count]] == b[target[:count]]).all()
        assert (b[target[count:]] == old[target[count:]]).all()


@given(st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 6)), max_size=7))
def test_pages_in_runs_are_gathered_in_their_order(runs: list[tuple[int, int]]) -> None:
    """Neighbours, one run or many, and pages named twice come as they were asked for."""
    one, there, rows = store(1)
    pages = [first + n for first, count in runs for n in range(min(count, PAGES - first))]
    slab = np.zeros(7 * 6 * sum(SIZES), np.uint8)
    moved = one.gather_pages(as_pages(pages, PAGES), slab)
    assert moved == len(pages) * sum(SIZES)
    wanted = b"".join(buffer[pages].tobytes() for buffer in there)
    assert slab[:moved].tobytes() == wanted
    assert named(one.runs(as_pages(pages, PAGES), None)) == wanted
    row = b"".join(buffer[2].tobytes() for buffer in rows)
    assert named(one.runs(as_pages(pages, PAGES), 2)) == wanted + row


@pytest.mark.parametrize("least", [1, 1000])
@given(st.lists(st.integers(0, PAGES - 1), min_size=1, unique=True))
def test_runs_and_single_pages_are_copied_alike(least: int, pages: list[int]) -> None:
    """Whether neighbours are copied as one piece or page by page makes no difference."""
    one, there, _ = store(1)
    two, here, _ = store(2)
    untouched = [buffer.copy() for buffer in here]
    numbers, slab = as_pages(sorted(pages), PAGES), np.zeros(PAGES * sum(SIZES), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_LEAST_MEAN", least)
        assert one.gather_pages(numbers, slab) == two.scatter_pages(numbers, slab)
    for a, b, old in zip(there, here, untouched, strict=True):
        assert (a[numbers] == b[numbers]).all()
        assert (np.delete(b, numbers, 0) == np.delete(old, numbers, 0)).all()


@given(
    order=st.permutations(range(5)),
    gaps=st.lists(st.sampled_from([0, 1, 64]), min_size=5, max_size=5),
    pages=st.lists(st.integers(0, PAGES - 1), min_size=1, unique=True),
    held=st.sampled_from([0, 1 << 10, 1 << 20]),
    mean=st.sampled_from([1, 1000]),
    most=st.sampled_from([0, 1000]),
)
def test_however_buffers_lie_only_the_pages_are_touched(
    order: list[int], gaps: list[int], pages: list[int], held: int, mean: int, most: int
) -> None:
    """Buffers at equal distances or not, forward or back: the pages move, and no byte beside."""
    size = 48
    lengths = [PAGES * size + gap for gap in gaps]
    edges = np.cumsum([0, *lengths])
    sides = [np.random.default_rng(seed).integers(0, 256, edges[-1], np.uint8) for seed in (1, 2)]
    layout = KvLayout(page_bytes=(size,) * 5, row_bytes=(), page_tokens=1, compat="")
    pools = [
        [flat[edges[n] : edges[n] + PAGES * size].reshape(PAGES, size) for n in order]
        for flat in sides
    ]
    stores = [PageStore(layout, PagePool(pool), PagePool([])) for pool in pools]
    numbers, slab = as_pages(pages, PAGES), np.zeros(PAGES * size * 5, np.uint8)
    wanted = sides[1].copy()
    for n in range(5):
        place = slice(edges[n], edges[n] + PAGES * size)
        wanted[place].reshape(PAGES, size)[numbers] = sides[0][place].reshape(PAGES, size)[numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_MOST_HELD", held)
        patch.setattr(copies, "_LEAST_MEAN", mean)
        patch.setattr(copies, "_MOST_PAGES", most)
        moved = stores[0].gather_pages(numbers, slab)
        assert slab[:moved].tobytes() == b"".join(one[numbers].tobytes() for one in pools[0])
        assert stores[1].scatter_pages(numbers, slab) == moved
    assert (sides[1] == wanted).all()


def test_buffers_at_equal_distances_are_one_block() -> None:
    """What lies evenly is copied together, in either direction; overlaps and odd ones are not."""
    flat = np.zeros(4096, np.uint8)
    layout = KvLayout(page_bytes=(8,) * 4, row_bytes=(), page_tokens=1, compat="")
    for starts, blocks in (
        ((0, 100, 200, 300), [4]),
        ((300, 200, 100, 0), [4]),
        ((0, 100, 200, 400), [3, 1]),
        ((0, 100, 300, 400), [2, 2]),
        ((0, 4, 8, 12), [1, 1, 1, 1]),
        ((0, 0, 0, 0), [1, 1, 1, 1]),
    ):
        pool = [flat[at : at + 80].reshape(10, 8) for at in starts]
        made = PageStore(layout, PagePool(pool), PagePool([]))
        assert [block.buffers for block in made._blocks] == blocks


def test_rows_are_copied() -> None:
    """One row of each auxiliary buffer moves and no other changes."""
    one, _, there = store(1)
    two, _, here = store(2)
    untouched = [buffer.copy() for buffer in here]
    slab = np.zeros(sum(ROWS), np.uint8)
    assert one.gather_row(3, slab) == two.scatter_row(1, slab) == sum(ROWS)
    for a, b, old in zip(there, here, untouched, strict=True):
        assert (a[3] == b[1]).all()
        assert (np.delete(b, 1, 0) == np.delete(old, 1, 0)).all()


@pytest.mark.parametrize("pages", [[-1], [PAGES], [0, PAGES], [[1, 2]]])
def test_pages_outside_the_pool_are_refused(pages: list[int]) -> None:
    """Wrong page numbers never reach a copy."""
    with pytest.raises(ValueError, match=r"page number"):
        as_pages(pages, PAGES)


def test_page_numbers_are_an_own_copy() -> None:
    """The caller may change its list after handing it over."""
    mine = np.array([1, 2, 3])
    kept = as_pages(mine, PAGES)
    mine[:] = 9
    assert kept.tolist() == [1, 2, 3]


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_outside_the_pool_is_refused(row: int) -> None:
    """Wrong rows never reach a copy."""
    with pytest.raises(ValueError, match="outside the pool of 4 rows"):
        store(1)[0].check_row(row)


@pytest.mark.parametrize(
    "buffers",
    [
        [np.zeros((4, 8), np.uint8)],
        [np.zeros((4, 8), np.uint8), np.zeros((4, 9), np.uint8)],
        [np.zeros((4, 8), np.uint8), np.zeros((4, 8), np.int8)],
        [np.zeros((4, 8), np.uint8), np.zeros((4, 16), np.uint8)[:, ::2]],
    ],
    ids=["missing", "size", "type", "strided"],
)
def test_a_pool_that_does_not_fit_the_layout_is_refused(buffers: list[np.ndarray]) -> None:
    """The pools are checked once, at the start."""
    layout = KvLayout(page_bytes=(8, 8), row_bytes=(), page_tokens=1, compat="")
    with pytest.raises(ValueError, match="buffer"):
        PageStore(layout, PagePool(buffers), PagePool([]))
