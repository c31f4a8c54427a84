"""Planted protocol bugs: a simulator that does not find them proves nothing.

Each mutant breaks one rule in the real service classes for as long as its context is open.
"""

from tests.sim.mutants.cleaning import CLEANING
from tests.sim.mutants.keyed import KEYED
from tests.sim.mutants.owned import OWNED
from tests.sim.mutants.plant import Mutant, first_kill, planted
from tests.sim.mutants.rare import RARE
from tests.sim.mutants.routed import ROUTED
from tests.sim.mutants.streamed import STREAMED
from tests.sim.mutants.working import WORKING

__all__ = ["MUTANTS", "RARE", "Mutant", "first_kill", "planted"]

MUTANTS: dict[str, Mutant] = {**STREAMED, **OWNED, **KEYED, **ROUTED, **WORKING, **CLEANING}
