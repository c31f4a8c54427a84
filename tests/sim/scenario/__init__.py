"""What a seed means: the fleet, the requests of clients, and what goes wrong. Pure drawing."""

from tests.sim.scenario.draw import draw
from tests.sim.scenario.plan import After, AskPlan, Body, Fault, Scenario, State, When

__all__ = ["After", "AskPlan", "Body", "Fault", "Scenario", "State", "When", "draw"]
