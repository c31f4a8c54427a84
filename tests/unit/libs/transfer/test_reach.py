from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.transfer import reach
from libs.transfer.crew import Crew
from libs.transfer.reach import ENTRY, Lease, blocked, peek, pull, pull_leased, table_of

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=40)


def _offer(lease: Lease, runs: reach.Table) -> reach.Table:
    """Return what a chunk offers: the lease, then the runs."""
    table = np.empty(len(runs) + 1, ENTRY)
    table[0], table[1:] = (lease.address, 8), runs
    return table


def _table(memory: np.ndarray, sizes: list[int]) -> reach.Table:
    """Return runs of these sizes, with a gap of a byte after each."""
    starts = np.cumsum([0, *(size + 1 for size in sizes[:-1])])
    base = memory.ctypes.data
    return table_of(tuple((base + int(at), size) for at, size in zip(starts, sizes, strict=True)))


@given(theirs=lengths, ours=lengths, most=st.integers(1, 5))
def test_any_runs_of_equal_length_carry_the_same_bytes(
    theirs: list[int], ours: list[int], most: int
) -> None:
    """However both sides are cut, and however few runs a call takes, the stream is the same."""
    total = min(sum(theirs), sum(ours))
    theirs, ours = _cut(theirs, total), _cut(ours, total)
    source = np.arange(600, dtype=np.uint8)
    target = np.zeros(600, np.uint8)
    old = reach._MOST_ENTRIES
    reach._MOST_ENTRIES = most
    try:
        pull(os.getpid(), _table(source, theirs), _table(target, ours))
    finally:
        reach._MOST_ENTRIES = old
    assert _bytes(target, ours) == _bytes(source, theirs)
    assert np.count_nonzero(target) <= total


@given(theirs=lengths, ours=lengths, threads=st.integers(1, 4))
def test_a_crew_carries_the_same_bytes(theirs: list[int], ours: list[int], threads: int) -> None:
    """Shared by any number of threads, the stream is the same, and the lease is read behind it."""
    total = min(sum(theirs), sum(ours))
    theirs, ours = _cut(theirs, total), _cut(ours, total)
    source = np.arange(600, dtype=np.uint8)
    target = np.zeros(600, np.uint8)
    lease, crew = Lease(7), Crew(threads, 1)
    try:
        word = pull_leased(
            os.getpid(), _offer(lease, _table(source, theirs)), _table(target, ours), crew
        )
    finally:
        crew.close()
    assert word == 7
    assert _bytes(target, ours) == _bytes(source, theirs)
    assert np.count_nonzero(target) <= total


def test_a_part_that_is_not_there_fails_the_whole() -> None:
    """A crew raises what one thread alone would: bad memory in any part, and unequal lengths."""
    source, target = np.ones(64, np.uint8), np.zeros(64, np.uint8)
    lease, crew = Lease(7), Crew(2, 1)
    broken = table_of(((source.ctypes.data, 32), (8, 16), (source.ctypes.data, 16)))
    try:
        with pytest.raises(OSError, match="address"):
            pull_leased(os.getpid(), _offer(lease, broken), _table(target, [64]), crew)
        short = _offer(lease, _table(source, [8]))
        with pytest.raises(ValueError, match="are to be filled"):
            pull_leased(os.getpid(), short, _table(target, [16]), crew)
    finally:
        crew.close()


def test_tables_of_different_length_are_refused() -> None:
    """Nothing is read when it is known that the bytes will not fit."""
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="8 bytes are to be filled, 4 are offered"):
        pull(os.getpid(), _table(memory, [4]), _table(memory, [8]))


def test_memory_that_is_not_there_is_an_error() -> None:
    """A wrong address and a process that is gone raise; neither harms the reader."""
    memory = np.zeros(8, np.uint8)
    with pytest.raises(OSError, match="address"):
        pull(os.getpid(), table_of(((8, 8),)), _table(memory, [8]))
    with pytest.raises(ProcessLookupError):
        peek((1 << 22) - 1, memory.ctypes.data)


def test_a_lease_that_has_ended_is_seen() -> None:
    """The word holds its value until its owner lets go."""
    lease = Lease(1 << 62)
    assert peek(os.getpid(), lease.address) == 1 << 62
    lease.end()
    assert peek(os.getpid(), lease.address) == 0


def test_ptrace_rules_block_the_lane(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Where the kernel lets only parents read, an unprivileged process learns why it may not."""
    rule, status = tmp_path / "ptrace_scope", tmp_path / "status"
    rule.write_text("1\n")
    monkeypatch.setattr(reach, "_YAMA", rule)
    monkeypatch.setattr(reach, "_STATUS", status)
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert blocked() == "lane cma is blocked: kernel.yama.ptrace_scope is 1"
    status.write_text("CapEff:\t0000000000080000\n")
    assert blocked() is None
    rule.write_text("0\n")
    status.write_text("CapEff:\t0\n")
    assert blocked() is None


def _cut(sizes: list[int], total: int) -> list[int]:
    cut: list[int] = []
    for size in sizes:
        cut.append(min(size, total - sum(cut)))
        if sum(cut) == total:
            break
    return cut


def _bytes(memory: np.ndarray, sizes: list[int]) -> bytes:
    at, found = 0, b""
    for size in sizes:
        found += memory[at : at + size].tobytes()
        at += size + 1
    return found
