"""Run a stack under load and faults: `python -m tests.chaos --minutes 10 --seed 1`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.judge.report import render
from tests.chaos.loop import run_loop
from tests.chaos.run import Options, run


def main() -> int:
    """Run, print the report, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long faults are made")
    parser.add_argument("--seed", type=int, help="of the load and of the faults")
    parser.add_argument("--clients", type=int, default=24, help="how many ask at once")
    parser.add_argument("--gap", type=float, default=2.0, help="mean seconds between two faults")
    parser.add_argument("--folder", type=Path, help="for logs; a new one by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="pdbus-chaos-"))
    print(f"seed {seed}, logs in {folder}", flush=True)
    options = Options(
        seconds=arguments.minutes * 60,
        seed=seed,
        folder=folder,
        clients=arguments.clients,
        gap_s=arguments.gap,
    )
    figures = run_loop(run(options))
    print(render(figures))
    print(f"again: python -m tests.chaos --minutes {arguments.minutes:g} --seed {seed}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"seed": seed} | figures.as_json(), indent=2))
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
