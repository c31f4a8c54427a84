"""Hunt the planted bugs: `python -m tests.sim.mutants [--most 300] [name ...]`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.mutants import MUTANTS, first_kill


def main() -> int:
    """Print for each mutant the first seed that finds it, and what told; 1 if one lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--most", type=int, default=300, help="seeds to try")
    options = parser.parse_args()
    alive = 0
    names = options.names or list(MUTANTS)
    print(f"{'planted bug':42} {'first seed':>10} {'seconds':>8}  told by")
    for name in names:
        began = time.perf_counter()
        kill = first_kill(MUTANTS[name], range(options.most))
        spent = time.perf_counter() - began
        alive += kill is None
        seed = "alive" if kill is None else str(kill.seed)
        told = " ".join(kill.names) if kill else ""
        print(f"{name:42} {seed:>10} {spent:>8.1f}  {told}", flush=True)
    print(f"{len(names) - alive} of {len(names)} found within {options.most} seeds")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
