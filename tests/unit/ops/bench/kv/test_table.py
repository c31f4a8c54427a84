"""The comparison says of each goal whether it is met, and what is possible at most."""

from __future__ import annotations

import pytest

from ops.bench.kv.contest import Round, Score
from ops.bench.kv.shapes import LAYOUTS, Cell
from ops.bench.kv.table import print_ratios, verdict

CELL = Cell(LAYOUTS["8b"], 16, 16 << 20, apart=False)


def score(
    seconds: float, cpu_s: float = 1.0, moved: int = CELL.moved, waited_s: float = 0.0
) -> Score:
    """Return one round of one transfer."""
    return Score(rounds=[Round(seconds, cpu_s, moved, 1, waited_s)])


def test_a_goal_is_met_or_missed() -> None:
    """Less is better for costs only."""
    assert verdict(0.91, 0.9) == " 0.91 (0.9 MET)"
    assert verdict(0.89, 0.9) == " 0.89 (0.9 MISSED)"
    assert verdict(1.01, 1.0, most=True) == " 1.01 (1 MISSED)"


def test_a_goal_is_missed_within_reach_or_out_of_it() -> None:
    """What is possible at most stands beside a goal that is missed, and only there."""
    assert verdict(0.5, 0.9, bound=0.95) == "  0.5 (0.9 MISSED, at most 0.95)"
    assert verdict(0.5, 0.9, bound=0.8) == "  0.5 (0.9 MISSED, at most 0.80: OUT OF REACH)"
    assert verdict(0.91, 0.9, bound=0.95) == " 0.91 (0.9 MET)"


def test_ratios_stand_beside_goals_and_what_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    """Each lane is held against what moves bytes on it, and against its own pieces and wakeups."""
    board = {
        CELL: {
            "pdbus cma": score(2e-3, waited_s=1e-3),
            "pdbus sysv": score(4e-3),
            "process_vm_readv": score(1e-3),
            "readv of pieces": score(5e-4, cpu_s=0.2),
            "gather, scatter": score(1e-3, cpu_s=0.8),
            "ucx_perftest sysv": score(4e-3),
            "NIXL": score(3e-3, cpu_s=0.5),
            "four wakeups": score(1e-3, moved=0),
        }
    }
    print_ratios(board)
    sysv, cma = [line for line in capsys.readouterr().out.splitlines() if "16.0 MiB" in line][::2]
    assert "x NIXL  0.75 (1.15 MISSED, at most 1.50)" in sysv
    assert "x ucx_perftest sysv     1 (0.9 MET)" in sysv
    assert "x floor  0.25 (0.9 MISSED, at most 0.50: OUT OF REACH)" in sysv
    assert "time / least 2.00 (no core 0% of it)" in sysv
    assert "CPU / copies alone 1.25" in sysv
    assert "x NIXL   1.5 (1.15 MET)" in cma
    assert "x process_vm_readv   0.5 (0.9 MISSED, at most 0.67: OUT OF REACH)" in cma
    assert "x floor  0.25 (0.9 MISSED, at most 0.33: OUT OF REACH)" in cma
    assert "time / least 1.33 (no core 50% of it)" in cma
    assert "CPU / copies alone 5.00" in cma
    assert "CPU / NIXL     2 (1 MISSED)" in cma


def test_the_fastest_way_to_copy_the_pieces_is_the_floor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where threads that share a read are faster than one, they bound the lane that does so."""
    board = {
        CELL: {
            "pdbus cma": score(2e-3),
            "process_vm_readv": score(1e-3),
            "readv of pieces": score(1e-3, cpu_s=0.2),
            "readv, shared": score(5e-4, cpu_s=0.25),
            "four wakeups": score(5e-4, moved=0),
        }
    }
    print_ratios(board)
    lines = [line for line in capsys.readouterr().out.splitlines() if "16.0 MiB together" in line]
    assert "x process_vm_readv   0.5 (0.9 MISSED, at most 1.00)" in lines[1]
    assert "time / least 2.00" in lines[1]
    assert "CPU / copies alone 4.00" in lines[1]
