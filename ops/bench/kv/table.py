"""Printing what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from ops.bench.kv.contest import Score
from ops.bench.kv.shapes import Cell

__all__ = ["print_cell", "print_ratios"]

_OURS = "pdbus cma"
_PEERS = ("NIXL", "NIXL no errors")
_ASKED = ("NIXL asked", "NIXL asked, no err")
_SIZE_STEP = 1 << 10


def print_cell(cell: Cell, scores: Mapping[str, Score], order: Sequence[str]) -> None:
    """Print one cell: a line a contestant."""
    print(f"\n{cell.name}, {_bytes(cell.moved)} in {cell.pieces} pieces")
    for name in order:
        score = scores[name]
        if score.problem or not score.rounds:
            print(f"  {name:18} not measured: {score.problem}")
            continue
        cpu = f"{score.cpu_per_gb:6.2f} CPU s/GB" if score.cpu_per_gb else ""
        print(f"  {name:18} {score.gbps:7.2f} GB/s {score.microseconds:10.0f} us {cpu}", flush=True)


def print_ratios(board: Mapping[Cell, Mapping[str, Score]]) -> None:
    """Print how pdbus stands beside NIXL and the lane itself, against the goals."""
    print("\nratios of pdbus cma, medians over layouts (goal)")
    sizes = sorted({cell.size for cell in board})
    for size in sizes:
        near = {cell: scores for cell, scores in board.items() if cell.size == size}
        for apart in (False, True):
            some = {cell: scores for cell, scores in near.items() if cell.apart is apart}
            shown = (
                ("x NIXL", _PEERS, "1.15"),
                ("x NIXL asked", _ASKED, "1.15"),
                ("x raw lane", ("process_vm_readv",), "0.7" if apart else "0.9"),
            )
            order = "apart   " if apart else "together"
            words = [
                f"{word} {_ratio(some, others, cpu=False)} ({goal})" for word, others, goal in shown
            ]
            cpu = _ratio(some, _PEERS, cpu=True)
            words.append(f"CPU / NIXL {cpu} ({'1.5' if apart else '1.0'})")
            print(f"  {_bytes(size):>9} {order} {'  '.join(words)}")


def _ratio(some: Mapping[Cell, Mapping[str, Score]], others: Iterable[str], *, cpu: bool) -> str:
    """Return the median ratio to the best of the others in each cell, or a dash."""
    found: list[float] = []
    for scores in some.values():
        mine = scores.get(_OURS)
        theirs = [scores[name] for name in others if name in scores and scores[name].rounds]
        if mine is None or not mine.rounds or not theirs:
            continue
        if cpu:
            found.append(mine.cpu_per_gb / min(score.cpu_per_gb for score in theirs))
        else:
            found.append(mine.gbps / max(score.gbps for score in theirs))
    return f"{median(found):5.2f}" if found else "    -"


def _bytes(count: int) -> str:
    kib = count / _SIZE_STEP
    return f"{kib:.0f} KiB" if kib < _SIZE_STEP else f"{kib / _SIZE_STEP:.1f} MiB"
