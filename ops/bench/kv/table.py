"""Printing what was measured, beside the goals and beside what is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ops.bench.kv.contest import Score
from ops.bench.kv.floor import Pieces
from ops.bench.kv.hops import Hops
from ops.bench.kv.pieces.copies import Copies
from ops.bench.kv.shapes import Cell

__all__ = ["print_cell", "print_ratios", "verdict"]

_PEERS = ("NIXL", "NIXL no errors")
_ASKED = ("NIXL asked", "NIXL asked, no err")
_SIZE_STEP = 1 << 10

Board = Mapping[Cell, Mapping[str, Score]]


@dataclass(frozen=True, slots=True)
class _Lane:
    """One of our lanes, and what moves bytes on the same one without anything around it."""

    name: str
    raw: str
    note: str
    floors: tuple[str, ...]
    """Ways to copy the very pieces with nothing around it; the fastest is the floor of a cell."""


_LANES = (
    _Lane("pdbus sysv", "ucx_perftest sysv", "the default on one host", (Copies.name,)),
    _Lane(
        "pdbus cma",
        "process_vm_readv",
        "by request",
        (Pieces.name, Pieces.shared_name, Copies.name),
    ),
)


def print_cell(cell: Cell, scores: Mapping[str, Score], order: Sequence[str]) -> None:
    """Print one cell: a line a contestant."""
    print(f"\n{cell.name}, {_bytes(cell.moved)} in {cell.pieces} pieces")
    for name in order:
        score = scores[name]
        if score.problem or not score.rounds:
            print(f"  {name:18} not measured: {score.problem}")
            continue
        cpu = f"{score.cpu_per_gb:6.2f} CPU s/GB" if score.cpu_per_gb else ""
        cpu += f", no core {score.waited:6.0f} us" if score.waited else ""
        rate = f"{score.gbps:7.2f} GB/s" if score.gbps else " " * 12
        print(f"  {name:18} {rate} {score.microseconds:10.0f} us {cpu}", flush=True)


def verdict(ratio: float, goal: float, *, most: bool = False, bound: float | None = None) -> str:
    """Return a ratio, its goal, and whether it is met.

    Args:
        ratio: what was measured.
        goal: what was to be reached.
        most: whether less is better.
        bound: what the ratio would be at best, if that is known; told where the goal is missed.
    """
    met = ratio <= goal if most else ratio >= goal
    words = f"{goal:g} {'MET' if met else 'MISSED'}"
    if bound is not None and not met:
        words += f", at most {bound:.2f}" + (": OUT OF REACH" if bound < goal else "")
    return f"{ratio:5.3g} ({words})"


def print_ratios(board: Board) -> None:
    """Print how pdbus stands beside NIXL and the lane itself, against the goals.

    The raw lane moves one run of bytes, and nobody asks for it. A lane's floor is what moves the
    very pieces of a cell as the lane does. The least time of a transfer is that of the floor and of
    the four wakeups of any ask and answer; `at most` is the ratio if it took that.
    """
    print("\nfloor: the pieces of the cell, copied as the lane does and nothing else, in this run;")
    print("  least: the floor and four wakeups, as nobody else waits asleep for ask and answer;")
    print(
        "  at most: the ratio if a transfer took no longer than that; OUT OF REACH: below the goal"
    )
    print("    (high where the other polls and had lost its cores to others)")
    print("  no core: time that threads of both processes, added up, waited for a core")
    for lane in _LANES:
        print(f"\n{lane.name} ({lane.note}): ratios, medians over layouts (goal)")
        for size in sorted({cell.size for cell in board}):
            for apart in (False, True):
                some = [
                    scores
                    for cell, scores in board.items()
                    if cell.size == size and cell.apart is apart
                ]
                order = "apart   " if apart else "together"
                words = "  ".join(_words(lane, some, apart=apart))
                print(f"  {_bytes(size):>9} {order} {words or 'not measured'}")


def _words(lane: _Lane, some: list[Mapping[str, Score]], *, apart: bool) -> list[str]:
    """Return each ratio of one size and order, where it was measured."""
    near = 0.7 if apart else 0.9
    rivals = [
        ("x NIXL", _PEERS, 1.15),
        ("x NIXL asked", _ASKED, 1.15),
        (f"x {lane.raw}", (lane.raw,), near),
        ("x floor", lane.floors, near),
    ]
    words: list[str] = []
    for word, names, goal in rivals:
        ratio = _ratio(lane, some, names)
        if ratio is not None:
            words.append(f"{word} {verdict(ratio, goal, bound=_bound(lane, some, names))}")
    words += _limits(lane, some)
    cpu = _ratio(lane, some, _PEERS, cpu=True)
    if cpu is not None:
        words.append(f"CPU / NIXL {verdict(cpu, 1.5 if apart else 1.0, most=True)}")
    return words


def _ratio(
    lane: _Lane, some: list[Mapping[str, Score]], others: Iterable[str], *, cpu: bool = False
) -> float | None:
    """Return the median ratio to the best of the others in each cell."""
    found: list[float] = []
    for scores in some:
        mine = scores.get(lane.name)
        theirs = _measured(scores, others)
        if mine is None or not mine.rounds or not theirs:
            continue
        if cpu:
            found.append(mine.cpu_per_gb / min(score.cpu_per_gb for score in theirs))
        else:
            found.append(mine.gbps / max(score.gbps for score in theirs))
    return median(found) if found else None


def _bound(lane: _Lane, some: list[Mapping[str, Score]], others: Iterable[str]) -> float | None:
    """Return that ratio if each transfer took its least time."""
    found: list[float] = []
    for scores in some:
        least, theirs = _least(lane, scores), _measured(scores, others)
        if least is not None and theirs:
            found.append(min(score.microseconds for score in theirs) / least)
    return median(found) if found else None


def _measured(scores: Mapping[str, Score], names: Iterable[str]) -> list[Score]:
    return [scores[name] for name in names if name in scores and scores[name].rounds]


def _least(lane: _Lane, scores: Mapping[str, Score]) -> float | None:
    """Return the least microseconds of a transfer of ours in a cell."""
    floors, hops = _measured(scores, lane.floors), _measured(scores, (Hops.name,))
    if not floors or not hops:
        return None
    return min(score.microseconds for score in floors) + hops[0].microseconds


def _limits(lane: _Lane, some: list[Mapping[str, Score]]) -> list[str]:
    """Return how far pdbus is from the least time and from the CPU time of the copies alone."""
    found: list[tuple[float, float, float]] = []
    for scores in some:
        least, mine = _least(lane, scores), _measured(scores, (lane.name,))
        if least is None or not mine:
            continue
        floor = min(_measured(scores, lane.floors), key=lambda score: score.microseconds)
        time, copying = mine[0].microseconds, floor.cpu_per_gb
        cpu = mine[0].cpu_per_gb / copying if copying else 0.0
        found.append((time / least, mine[0].waited / time, cpu))
    if not found:
        return []
    times, waited, cpu = (median(values) for values in zip(*found, strict=True))
    return [
        f"time / least {times:4.2f} (no core {waited:.0%} of it)",
        f"CPU / copies alone {cpu:4.2f}",
    ]


def _bytes(count: int) -> str:
    kib = count / _SIZE_STEP
    return f"{kib:.0f} KiB" if kib < _SIZE_STEP else f"{kib / _SIZE_STEP:.1f} MiB"
