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
    assert "x NIXL  0.75 (1.15 MISSED)" in sysv
    assert "x ucx_perftest sysv     1 (0.9 MET)  x floor  0.25 (0.9 MISSED)" in sysv
    assert "at most 2.00  time / least 2.00 (no core 0% of it)" in sysv
    assert "CPU / copies alone 1.25" in sysv
    assert "x NIXL   1.5 (1.15 MET)" in cma
    assert "x process_vm_readv   0.5 (0.9 MISSED)  x floor  0.25 (0.9 MISSED)" in cma
    assert "at most 0.67  time / least 1.33 (no core 50% of it)" in cma
    assert "CPU / copies alone 5.00" in cma
    assert "CPU / NIXL     2 (1 MISSED)" in cma
