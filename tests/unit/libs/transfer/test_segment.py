"""Slabs in memory that two processes hold, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.transfer import segment as segments
from libs.transfer.segment import Segment, SegmentError

SLAB = 5000


def held(number: int) -> bool:
    """Return whether the system still has a segment."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return any(int(row.split()[1]) == number for row in rows)


def test_another_process_reads_what_was_put_down() -> None:
    """A process that joins sees each slab where its maker wrote it, though it is to be removed."""
    made = Segment.make(3, SLAB)
    for place, slab in enumerate(made.slabs):
        slab[:] = place + 1
    text = (
        "from libs.transfer.segment import Segment\n"
        f"slabs = Segment.join({made.number}, {os.getpid()}, 3, {SLAB}).slabs\n"
        "print([int(slab.sum()) for slab in slabs])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([SLAB, 2 * SLAB, 3 * SLAB])


def test_the_last_view_keeps_a_segment() -> None:
    """It stays while an array of it is in use, and is gone with the last one."""
    made = Segment.make(2, SLAB)
    number, view = made.number, made.slabs[1][10:20]
    del made
    view[:] = 7
    assert held(number)
    del view
    assert not held(number)


@pytest.mark.parametrize("change", ["number", "maker", "count"])
def test_only_what_a_process_has_made_is_joined(change: str) -> None:
    """A number of nobody, of another process or of too short a segment is refused."""
    made = Segment.make(2, SLAB)
    facts = {"number": made.number, "maker": os.getpid(), "count": 2, "slab_bytes": SLAB}
    facts[change] += 1 << 20
    with pytest.raises(SegmentError, match="no such segment"):
        Segment.join(**facts)


def test_where_segments_are_not_listed_none_is_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that cannot see whose a segment is leaves it alone."""
    made = Segment.make(1, SLAB)
    monkeypatch.setattr(segments, "_LISTED", tmp_path / "shm")
    with pytest.raises(SegmentError, match="No such file"):
        Segment.join(made.number, os.getpid(), 1, SLAB)


def test_more_than_the_system_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no shared memory left, whoever wants some hears why."""
    monkeypatch.setattr(segments, "_stride", lambda slab_bytes: -slab_bytes)
    with pytest.raises(SegmentError, match=r"Invalid|Cannot|No space"):
        Segment.make(1, SLAB)
