"""The floors move the very pieces of a cell."""

from __future__ import annotations

import numpy as np
import pytest

from libs.transfer.api import KvLayout, PagePool
from libs.transfer.pages import PageStore
from ops.bench.kv.contest import Unavailable
from ops.bench.kv.floor import Pieces, _runs
from ops.bench.kv.pieces.copies import Copies
from ops.bench.kv.shapes import LAYOUTS, Cell, places


@pytest.mark.parametrize("apart", [False, True])
def test_pieces_lie_where_a_plane_would_look(apart: bool) -> None:
    """The table of a floor is the one that a plane makes of the same pages."""
    cell = Cell(LAYOUTS["smollm2"], 1, 1 << 18, apart)
    pools = [np.zeros((2 * cell.pages, cell.page_bytes), np.uint8) for _ in range(60)]
    layout = KvLayout((cell.page_bytes,) * 60, (), 1, "")
    pages = places(cell, seed=1)
    wanted = PageStore(layout, PagePool(pools), PagePool(())).runs(pages, None)
    found = _runs([pool.ctypes.data for pool in pools], pages, cell.page_bytes)
    assert found.tolist() == wanted.tolist()
    assert len(found) == cell.pieces


@pytest.mark.parametrize("floor", [Pieces, Copies])
def test_a_floor_moves_a_cell(floor: type[Pieces | Copies]) -> None:
    """Each reports the bytes that it has moved."""
    cell = Cell(LAYOUTS["smollm2"], 1, 1 << 18, apart=True)
    contestant = floor()
    try:
        contestant.prepare(cell)
        assert contestant.run(cell, 2).moved == 2 * cell.moved
    finally:
        contestant.close()


def test_what_is_too_short_to_share_is_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share what a plane's would share, and move all of it."""
    short, long = (Cell(LAYOUTS["8b"], 16, size << 20, apart=True) for size in (1, 16))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    contestant = Pieces(shared=True)
    try:
        with pytest.raises(Unavailable, match="too short"):
            contestant.prepare(short)
        contestant.prepare(long)
        assert contestant.run(long, 1).moved == long.moved
    finally:
        contestant.close()
