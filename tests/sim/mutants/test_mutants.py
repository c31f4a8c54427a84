from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, RARE, first_kill
from tests.sim.mutants.seeds import REGRESSIONS

pytestmark = pytest.mark.sim

_MOST = 300


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


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda r: r.mutant)
def test_a_bug_that_was_found_would_be_found_again(regression):
    """The seed that found it tells, should it come back."""
    assert first_kill(RARE[regression.mutant], [regression.seed]) is not None


def test_there_are_enough_of_them():
    """The gate has at least fifteen planted bugs."""
    assert len(MUTANTS) >= 15
