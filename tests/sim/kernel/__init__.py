"""Virtual time, processes that can die, and the record of what happened."""

from tests.sim.kernel.clock import SimClock
from tests.sim.kernel.loop import Deadlock, Domain, SimLoop, StepLimit
from tests.sim.kernel.trace import Trace, Violation

__all__ = ["Deadlock", "Domain", "SimClock", "SimLoop", "StepLimit", "Trace", "Violation"]
