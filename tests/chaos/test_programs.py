"""Small slices of the programs that measure cancels and resubmissions, without faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import cancels, keys
from tests.chaos.loop import run_loop

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_cancels_free_both_sides(tmp_path: Path) -> None:
    """Sixty clients leave in all phases: both sides are freed in time, and nothing leaks."""
    found = run_loop(cancels.cancels(tmp_path, 60, seed=1))
    report = cancels.render(found)
    print(report)
    assert found.misses == [], report
    assert sum(spread.count for spread in found.freed.values()) >= 15, report


def test_a_key_runs_once(tmp_path: Path) -> None:
    """Ten keys, each sent eight times at once over two gateways: one execution, one answer."""
    found = run_loop(keys.keys(tmp_path, 10, seed=1))
    report = keys.render(found)
    print(report)
    assert found.misses == [], report
    assert found.executions == {1: 10}, report
