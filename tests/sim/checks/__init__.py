"""The invariants I1 to I12, and what follows from them.

Some are checked at each event, some once a second (`watch`), the rest when the world has come to
rest (`final`). Each class owns some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.checks.answers import Answers
from tests.sim.checks.keys import Keys
from tests.sim.checks.leases import Leases
from tests.sim.checks.records import Records
from tests.sim.checks.rest import Rest
from tests.sim.checks.work import Work
from tests.sim.ports.network import NetworkHooks

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Checks"]


class Checks:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.records = Records(world)
        self.answers = Answers(world)
        self.work = Work(world)
        self.leases = Leases(world)
        self.keys = Keys(world)
        self.rest = Rest(world)
        world.ledger.watchers.append(self.records.written)
        world.network.hooks = NetworkHooks(
            said=self.work.said, ending=self.work.told_to_end, told=self.leases.told
        )

    def watch(self) -> None:
        """Check the bounds of time, as the world goes on."""
        self.answers.watch()
        self.records.watch()
        self.leases.watch()

    def final(self) -> None:
        """Check what must be true when nothing goes on any more."""
        self.answers.final()
        self.records.final()
        self.work.final()
        self.keys.final()
        self.rest.final()
