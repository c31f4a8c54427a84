"""How a pair of workers is scored. To add one: write `<name>.py`, add its line to `POLICIES`."""

from services.router.policies.api import Candidate, Policy, Score
from services.router.policies.least_loaded import least_loaded

POLICIES: dict[str, Policy] = {"least_loaded": least_loaded}

__all__ = ["POLICIES", "Candidate", "Policy", "Score"]
