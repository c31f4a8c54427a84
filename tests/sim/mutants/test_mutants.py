from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, RARE, first_kill
from tests.sim.mutants.plant import only_aimed
from tests.sim.mutants.seeds import REGRESSIONS

pytestmark = pytest.mark.sim

_MOST = 300
_MOST_RARE = 2000


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name):
    """A service with this rule broken breaks a promise within three hundred seeds.

    The seed that is known to find it is tried first, so that this takes a moment.
    """
    mutant = MUTANTS[name]
    others = (seed for seed in range(_MOST) if seed != mutant.seed)
    kill = first_kill(mutant, [mutant.seed]) or first_kill(mutant, others)
    assert kill is not None
    print(f"{name}: seed {kill.seed}, told by {', '.join(kill.names)}")
    assert mutant.seed < _MOST


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RARE)
def test_a_bug_that_was_found_would_be_found_again(name):
    """A world that shows it is within the seeds of the sweep; the known one is tried first."""
    mutant = RARE[name]
    others = (seed for seed in range(_MOST_RARE) if seed != mutant.seed)
    kill = first_kill(mutant, [mutant.seed]) or first_kill(mutant, others)
    assert kill is not None
    print(f"{name}: seed {kill.seed}, told by {', '.join(kill.names)}")


@pytest.mark.parametrize("name", [name for name, bug in RARE.items() if bug.aims])
def test_bringing_a_moment_about_breaks_nothing(name):
    """It is the planted bug that is found, not what brings its moment about."""
    assert first_kill(only_aimed(RARE[name]), range(30)) is None


def test_every_regression_is_planted_too():
    """A seed is kept only beside the bug that it has found."""
    assert {one.mutant: one.seed for one in REGRESSIONS}.items() <= {
        name: mutant.seed for name, mutant in RARE.items()
    }.items()


def test_there_are_enough_of_them():
    """The gate has at least fifteen planted bugs."""
    assert len(MUTANTS) >= 15
