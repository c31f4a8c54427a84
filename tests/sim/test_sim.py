from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.report import summary, tell
from tests.sim.scenario import draw
from tests.sim.world import run_seed

pytestmark = pytest.mark.sim

_SEEDS = int(os.environ.get("PDBUS_SIM_SEEDS", "200"))
_BLOCK = 25
_ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, _SEEDS, _BLOCK))
def test_no_promise_is_broken(first):
    """The invariants hold in every world of this block of seeds."""
    outcomes = [run_seed(seed) for seed in range(first, min(first + _BLOCK, _SEEDS))]
    print(summary(outcomes))
    bad = [outcome for outcome in outcomes if outcome.violations]
    assert not bad, "\n".join(tell(outcome, full=True) for outcome in bad[:2])


def test_the_worlds_are_worth_running():
    """Over a few seeds requests end in many ways, most faults happen, and messages are lost."""
    outcomes = [run_seed(seed, graves=False) for seed in range(40)]
    states = {state for outcome in outcomes for state in outcome.states}
    endings = {ending.partition(":")[0] for outcome in outcomes for ending in outcome.endings}
    faults = {fault for outcome in outcomes for fault in outcome.faults}
    assert {"done", "failed", "cancelled"} <= states
    assert {"answered", "failed", "left"} <= endings
    assert len(faults) >= 8
    assert sum(outcome.events["drop"] for outcome in outcomes) > 0
    answered = sum(outcome.endings["answered"] for outcome in outcomes)
    assert answered > 100


def test_the_same_seed_is_the_same_world():
    """A seed gives the same events in this process, again, and under another string hash."""
    seeds = range(4)
    here = [run_seed(seed).digest for seed in seeds]
    again = [run_seed(seed).digest for seed in seeds]
    assert here == again
    code = (
        "from tests.sim.world import run_seed;"
        f"print(*(run_seed(seed).digest for seed in range({len(seeds)})))"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert elsewhere.stdout.split() == here
    assert len(set(here)) == len(here)


def test_scenarios_differ():
    """Seeds draw different worlds, with and without faults."""
    drawn = [draw(seed) for seed in range(50)]
    assert len({str(scenario.requests) for scenario in drawn}) == 50
    assert any(not scenario.faults for scenario in drawn)
    assert any(len(scenario.faults) == 4 for scenario in drawn)
    assert {scenario.shuffle for scenario in drawn} == {True, False}
