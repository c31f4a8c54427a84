"""`make fuzz-edge`: CASES made-up requests, from SEED, to a gateway's HTTP side or to URL."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import structlog

from tests.fuzz.cases import fuzz
from tests.fuzz.served import served
from tests.unit.services.gateway.rig import MODEL


def main() -> int:
    """Send the cases and print what came of them; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a gateway that runs already")
    parser.add_argument("--model", default=MODEL, help="a model that it serves")
    given = parser.parse_args()
    # One line a request is for operators.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with ExitStack() as stack:
        url = given.url
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(served(Path(folder)))
        report = fuzz(url, given.model, cases=given.cases, start=given.seed)
    for fault in report.faults:
        print(f"--- fault\n{fault}")
    print("\n".join(report.lines()))
    return 1 if report.server_errors or report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
