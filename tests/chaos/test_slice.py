"""A slice of the chaos run: one fixed seed, most kinds of faults, in a minute and a half."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.judge.report import render
from tests.chaos.loop import run_loop
from tests.chaos.run import Options, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(360)]


def test_no_promise_is_broken(tmp_path: Path) -> None:
    """I1 to I8 and I12 hold while processes are killed, stopped and parted under load."""
    figures = run_loop(run(Options(seconds=60, seed=1, folder=tmp_path, gap_s=1.5)))
    report = render(figures)
    print(report)
    assert figures.violations == [], report
    assert figures.faults.total() >= 15, report
    assert figures.outcomes["answered"] >= 50, report
