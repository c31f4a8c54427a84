from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.matrix import table
from tests.sim.mutants.seeds import REGRESSIONS
from tests.sim.report import Tally, summary, tell
from tests.sim.scenario import draw
from tests.sim.scenario.draw import SHAPES
from tests.sim.sweep import BLOCK
from tests.sim.world import run_seed

pytestmark = pytest.mark.sim

_DEFAULT = 2000
_SEEDS = int(os.environ.get("PDBUS_SIM_SEEDS", _DEFAULT))
_BLOCKS = range(-(-_SEEDS // BLOCK))
_ROOT = Path(__file__).parents[2]

all_of_them = pytest.mark.skipif(
    _SEEDS < _DEFAULT, reason="PDBUS_SIM_SEEDS asks for fewer worlds than this needs"
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", _BLOCKS)
def test_no_promise_is_broken(swept, block):
    """The invariants hold in every world of this block of seeds."""
    bad = [outcome for outcome in swept.block(block) if outcome.violations]
    assert not bad, "\n".join(tell(outcome, full=True) for outcome in bad[:2])


@all_of_them
@pytest.mark.timeout(600)
def test_every_cell_of_the_crash_matrix_is_reached(swept):
    """Each fault has hit a request in each state that it can meet."""
    tally = Tally()
    for outcome in swept.outcomes():
        tally.add(outcome)
    print(table(tally.hits))
    assert tally.missing == []


@all_of_them
@pytest.mark.timeout(600)
def test_the_worlds_are_worth_running(swept):
    """Requests end in many ways, every kind of fault happens, answers move and are taken over."""
    print(summary(swept.outcomes()))
    tally = Tally()
    for outcome in swept.outcomes():
        tally.add(outcome)
    assert set(tally.shapes) == set(SHAPES)
    assert {"done", "failed", "cancelled"} <= set(tally.states)
    endings = {ending.partition(":")[0] for ending in tally.endings}
    assert {"answered", "failed", "left", "cut", "refused"} <= endings
    assert tally.endings["answered"] > tally.facts["asks"] / 2
    assert min(tally.events[kind] for kind in ("drop", "duplicate", "stale")) > 100
    assert tally.facts["migrations"] > 100
    assert tally.facts["taken_over"] > 20
    answers = {ending.partition(":")[2] for ending in tally.endings}
    assert {"idempotency_key_reused", "already_cancelled", "version_mismatch"} <= answers


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda r: f"{r.seed}")
def test_what_was_found_stays_mended(regression):
    """A seed that once found a bug in a service finds none."""
    outcome = run_seed(regression.seed)
    assert not outcome.violations, f"{regression.reason}\n{tell(outcome, full=True)}"


@pytest.mark.timeout(120)
def test_the_same_seed_is_the_same_world():
    """A seed gives the same events in this process, again, and under another string hash."""
    seeds = range(8)
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
        timeout=100,
    )
    assert elsewhere.stdout.split() == here
    assert len(set(here)) == len(here)


def test_scenarios_differ():
    """Seeds draw different worlds, with and without faults, of every kind."""
    drawn = [draw(seed) for seed in range(300)]
    assert len({str(scenario.asks) for scenario in drawn}) == 300
    assert any(not scenario.faults for scenario in drawn)
    assert any(len(scenario.faults) == 4 for scenario in drawn)
    assert {scenario.shuffle for scenario in drawn} == {True, False}
    assert {scenario.shape for scenario in drawn} == set(SHAPES)
