"""What aborts, crashes and cancels leave behind in a pair of real SGLang engines.

    python -m ops.bench.judge [--part table|cancels] [--only TEXT] [--repeat N]
                              [--cancels 100] [--seed N]

The tiny model; a killed engine is started again before the next cell. The exit status is 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from libs.models import resolve
from ops.bench.judge.cancels import AFTER_BOUND_S, BEFORE_BOUND_S, Cancels, cancel_many, quantile
from ops.bench.judge.cells import CELLS, Outcome, judge_cell
from ops.bench.judge.pair import Pair, pair


def _row(outcome: Outcome) -> str:
    free = "-" if outcome.free_s is None else f"{outcome.free_s:.2f}"
    star = "*" if outcome.went_on else " "
    ends = ", ".join(f"{side} {end}" for side, end in outcome.ends.items())
    moved = f"  (moved {outcome.moved})" if outcome.moved else ""
    verdict = "ok" if outcome.passed else "FAIL"
    return (
        f"{outcome.phase:13}  {outcome.action.label:24}  {free:>5}{star} {outcome.bound_s:5.0f}"
        f"  {outcome.next:>7}  {verdict:4}  {ends}{moved}"
    )


async def _table(engines: Pair, only: str, repeat: int) -> bool:
    print("phase          action                    free s bound     next        each side saw")
    cells = repeat * [cell for cell in CELLS if only in f"{cell[0]} / {cell[1].label}"]
    wrong = 0
    for phase, action in cells:
        outcome = await judge_cell(engines, phase, action)
        print(_row(outcome), flush=True)
        for problem in outcome.problems:
            print(f"    {problem}", flush=True)
        wrong += not outcome.passed
    print("* the answer went on to its end; counted from there")
    print(f"cells {len(cells)}, wrong {wrong}", flush=True)
    return not wrong


def _times(name: str, values: list[float]) -> str:
    middle, most = quantile(values, 0.5), quantile(values, 0.99)
    return f"{name}: {len(values)}, p50 {1000 * middle:.0f} ms, p99 {1000 * most:.0f} ms"


async def _cancels(engines: Pair, count: int, seed: int) -> bool:
    found: Cancels = await cancel_many(engines, count, seed)
    print(f"cancels {found.count} (seed {seed}), over before their cancel {found.too_late}")
    print("  " + _times("before the first token", found.before), f"(bound {BEFORE_BOUND_S:g} s)")
    print("  " + _times("after it", found.after), f"(bound {AFTER_BOUND_S:g} s)")
    print("  " + _times("waves until the engines' figures were zero", found.figures))
    print(f"  leaked KV tokens {found.leaked}, open rooms {found.rooms}")
    for problem in found.problems:
        print(f"  {problem}")
    in_time = (
        quantile(found.before, 0.99) <= BEFORE_BOUND_S
        and quantile(found.after, 0.99) <= AFTER_BOUND_S
    )
    if not in_time:
        print("  not in time")
    return in_time and not (found.leaked or found.rooms or found.problems)


async def _run(given: argparse.Namespace) -> bool:
    good = True
    with tempfile.TemporaryDirectory(prefix="pdbus-judge-") as logs:
        model = resolve("tiny", given.models, lambda text: print(text, file=sys.stderr))
        async with pair(model, Path(logs)) as engines:
            if given.part in (None, "table"):
                good = await _table(engines, given.only, given.repeat)
            if given.part in (None, "cancels"):
                good = await _cancels(engines, given.cancels, given.seed) and good
    return good


def main() -> None:
    """Run both parts, print what they show, and exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="ops.bench.judge")
    parser.add_argument("--part", choices=["table", "cancels"], help="only this part")
    parser.add_argument("--only", default="", help="only cells whose `phase / action` has this")
    parser.add_argument("--repeat", type=int, default=1, help="how often each cell is judged")
    parser.add_argument("--cancels", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the cancels")
    parser.add_argument("--models", type=Path, default=Path(".pdbus/models"))
    sys.exit(0 if asyncio.run(_run(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
