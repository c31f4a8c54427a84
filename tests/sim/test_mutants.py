from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, planted
from tests.sim.world import run_seed

pytestmark = pytest.mark.sim

_QUICK = 100
_MOST = 300
_RARE = {"no tombstones"}
"""Mutants that need a rare coincidence."""


def _first_kill(name: str, seeds: range) -> int | None:
    with planted(name):
        for seed in seeds:
            found = {violation.name for violation in run_seed(seed, graves=False).violations}
            if found & MUTANTS[name].breaks:
                return seed
    return None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(set(MUTANTS) - _RARE))
def test_a_planted_bug_is_found_quickly(name):
    """A service with this rule broken breaks a promise within the first hundred seeds."""
    assert _first_kill(name, range(_QUICK)) is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(_RARE))
def test_a_rare_planted_bug_is_found(name):
    """A bug that needs a rare coincidence is found within three hundred seeds."""
    assert _first_kill(name, range(_MOST)) is not None
