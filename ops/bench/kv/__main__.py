"""Measure the data plane beside its peers: `make bench-kv`, or `python -m ops.bench.kv [--full]`.

For each layout, page size and order of pages, and for each size, every contestant moves the same
bytes in turns. pdbus is timed end to end, from decode's ask until all pages are usable there;
the others move bytes that nobody asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from libs.transfer.ucx.lanes import lane_options
from ops.bench.kv.contest import Contestant, Score, Unavailable
from ops.bench.kv.extras import measure_idle, measure_overlap, measure_parted
from ops.bench.kv.floor import Memcpy, Perftest, Pieces, Read, Tcp
from ops.bench.kv.hops import Hops
from ops.bench.kv.ours import Ours
from ops.bench.kv.peers import KINDS, Peer, install
from ops.bench.kv.pieces.copies import Copies
from ops.bench.kv.shapes import Cell, cells
from ops.bench.kv.table import print_cell, print_ratios
from proto.kv import Lane

__all__ = ["main"]

_ROUND_BYTES = 64 << 20
_MOST_TRANSFERS = 50
_CELL_S = 8.0
"""After so long no further round of a cell is begun, so that a busy machine ends as well."""
_RAW = {f"UCX_{name}": value for name, value in lane_options(Lane.SYSV, None).items()}
"""What pdbus sets on that lane."""

Board = dict[Cell, dict[str, Score]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="ops.bench.kv", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all layouts, page sizes and sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose name has this text")
    parser.add_argument("--ours-only", action="store_true", help="leave the peers out")
    parser.add_argument("--json", type=Path, help="also write all rounds here")
    given = parser.parse_args()
    missing = "" if given.ours_only else install()
    if missing:
        print(f"peers not installed: {missing}", file=sys.stderr)
    plan = [cell for cell in cells(full=given.full) if given.only in cell.name]
    board: Board = {}
    for _, some in groupby(plan, key=lambda cell: (cell.layout.name, cell.page_tokens)):
        _contest(list(some), given.rounds, board, ours_only=given.ours_only)
    print_ratios(board)
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: a busy machine costs wall time"
    )
    for extra in (measure_idle, measure_overlap, measure_parted):
        try:
            extra()
        except Unavailable as error:
            print(f"{extra.__name__.removeprefix('measure_')}: not measured: {error}")
    if given.json is not None:
        rows = {
            f"{cell.name} {cell.size}": {name: _row(score) for name, score in scores.items()}
            for cell, scores in board.items()
        }
        given.json.write_text(json.dumps(rows, indent=2))


def _contest(some: Sequence[Cell], rounds: int, board: Board, *, ours_only: bool) -> None:
    """Measure the cells of one layout and page size."""
    largest = max(some, key=lambda cell: cell.moved)
    makers: dict[str, Callable[[], Contestant]] = {
        "pdbus cma": lambda: Ours(Lane.CMA, largest),
        "pdbus sysv": lambda: Ours(Lane.SYSV, largest),
        "pdbus sysv x4": lambda: Ours(Lane.SYSV, largest, 4),
        "pdbus cma x4": lambda: Ours(Lane.CMA, largest, 4),
        "memcpy": Memcpy,
        "process_vm_readv": Read,
        Pieces.name: Pieces,
        Pieces.shared_name: lambda: Pieces(shared=True),
        Copies.name: Copies,
        Hops.name: Hops,
        "ucx_perftest sysv": lambda: Perftest("ucx_perftest sysv", ("-e",), _RAW),
    }
    if not ours_only:
        makers |= {
            "tcp socket": Tcp,
            "ucx_perftest": lambda: Perftest("ucx_perftest", (), {}),
            **{KINDS[kind]: _peer(kind, largest) for kind in KINDS},
        }
    present: dict[str, Contestant] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            present[name] = make()
        except Unavailable as error:
            absent[name] = str(error)
    try:
        for cell in some:
            board[cell] = {name: Score(problem=why) for name, why in absent.items()}
            _turns(cell, rounds, present, board[cell])
            print_cell(cell, board[cell], list(makers))
    finally:
        for contestant in present.values():
            contestant.close()


def _peer(kind: str, largest: Cell) -> Callable[[], Contestant]:
    return lambda: Peer(kind, largest)


def _turns(
    cell: Cell, rounds: int, present: dict[str, Contestant], scores: dict[str, Score]
) -> None:
    """Let everybody move the cell in turns; whoever cannot is left out from then on."""
    transfers = max(2, min(_MOST_TRANSFERS, _ROUND_BYTES // cell.moved))
    for name, contestant in present.items():
        scores[name] = Score()
        try:
            contestant.prepare(cell)
        except Unavailable as error:
            scores[name].problem = str(error)
    end = time.monotonic() + _CELL_S
    for turn in range(rounds):
        if turn and time.monotonic() > end:
            break
        for name, contestant in present.items():
            if scores[name].problem:
                continue
            try:
                scores[name].rounds.append(contestant.run(cell, transfers))
            except Unavailable as error:
                scores[name].problem = str(error)


def _row(score: Score) -> dict[str, object]:
    rounds = [[one.seconds, one.cpu_s, one.moved, one.transfers] for one in score.rounds]
    return {"problem": score.problem, "rounds": rounds}


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
