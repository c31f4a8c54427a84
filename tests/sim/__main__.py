"""Run the simulator: `python -m tests.sim --seeds 2000`, or one seed with its story."""

from __future__ import annotations

import argparse
import sys

from tests.sim.report import summary, tell
from tests.sim.sweep import processes_from_environment, sweep
from tests.sim.world import run_seed


def main() -> int:
    """Run seeds, print what they gave, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--processes", type=int, default=processes_from_environment())
    parser.add_argument("--verbose", action="store_true", help="print the story of each violation")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run_seed(options.seed, keep=200_000)
        print(summary([outcome]))
        if outcome.violations or options.verbose:
            print(tell(outcome, full=options.verbose))
        return 1 if outcome.violations else 0
    outcomes = []
    with sweep(range(options.start, options.start + options.seeds), options.processes) as swept:
        for outcome in swept.outcomes():
            outcomes.append(outcome)
            if outcome.violations:
                print(tell(outcome, full=options.verbose), flush=True)
    print(summary(outcomes, matrix=True))
    return 1 if any(outcome.violations for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
