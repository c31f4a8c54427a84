"""Token parity: one prefill and one decode engine must answer as one aggregated engine does.

python -m ops.bench.parity [--part tiny|smollm2] [--models DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from libs.models import ModelFolder, resolve
from ops.bench.prompts import lengths, prompt
from ops.bench.rig import Answer, Rig, greedy, rig
from proto.host import JobFinished
from proto.workers import Role

__all__ = ["CASES", "Case", "Result", "compare", "main"]

_PROMPTS = 20
_SHORTEST = 5
_LONGEST = 3000
_TOKENS = 24
_ROLES = (Role.AGGREGATED, Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison."""

    model: str
    page_size: int
    chunk: int | None
    """Most prompt tokens in one forward pass; a smaller value forces several chunks."""
    concurrent: bool
    """Also all prompts at once (bfloat16 results depend on the batch, so only in float32)."""


CASES = (
    Case(model="tiny", page_size=1, chunk=256, concurrent=True),
    Case(model="tiny", page_size=16, chunk=256, concurrent=True),
    Case(model="smollm2", page_size=16, chunk=None, concurrent=False),
)


@dataclass(slots=True)
class Result:
    """How many prompts had equal answers, and what else went wrong."""

    sequential: int = 0
    concurrent: int | None = None
    chunks: int = 0
    """Most chunks of one transfer."""
    moved: int = 0
    expected: int = 0
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all was equal."""
        both = (self.sequential, self.sequential if self.concurrent is None else self.concurrent)
        return not self.problems and both == (_PROMPTS, _PROMPTS) and self.moved == self.expected


async def compare(case: Case, model: ModelFolder, logs: Path) -> Result:
    """Run one case on fresh engines."""
    arguments = {} if case.chunk is None else {"chunked_prefill_size": case.chunk}
    async with rig(_ROLES, model, logs, page_size=case.page_size, engine_args=arguments) as engines:
        return await compare_on(engines, case, model)


async def compare_on(engines: Rig, case: Case, model: ModelFolder) -> Result:
    """Run one case on engines that are ready."""
    sizes = lengths(_PROMPTS, _SHORTEST, _LONGEST)
    prompts = [prompt(model.path, size, seed) for seed, size in enumerate(sizes)]
    sampling = greedy(_TOKENS)
    reference = [(await engines.aggregated(ids, sampling)).ids for ids in prompts]
    answers = [await engines.split(ids, sampling) for ids in prompts]
    result = Result(sequential=_equal(reference, answers))
    if case.concurrent:
        # Other texts: the same ones would come from the prefix cache.
        prompts = [prompt(model.path, size, 1000 + seed) for seed, size in enumerate(sizes)]
        reference = [(await engines.aggregated(ids, sampling)).ids for ids in prompts]
        at_once = await asyncio.gather(*(engines.split(ids, sampling) for ids in prompts))
        result.concurrent = _equal(reference, at_once)
        answers += at_once
    _account(result, answers)
    return result


def _equal(reference: list[list[int]], answers: list[Answer]) -> int:
    pairs = zip(reference, answers, strict=True)
    return sum(ids == answer.ids and len(ids) == _TOKENS for ids, answer in pairs)


def _account(result: Result, answers: list[Answer]) -> None:
    problems: list[str] = []
    for answer in answers:
        if answer.failure:
            problems.append(answer.failure)
            continue
        report = answer.last.transfer if isinstance(answer.last, JobFinished) else None
        if report is None:
            problems.append("no transfer report")
            continue
        result.chunks = max(result.chunks, report.chunks)
        result.moved += report.moved_bytes
        result.expected += report.expected_bytes
    result.problems = tuple(problems)


async def _run(cases: tuple[Case, ...], models: Path) -> bool:
    good = True
    print("model    page  chunk  sequential  at once  chunks      moved MB  result")
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="pdbus-parity-") as logs:
            model = resolve(case.model, models, lambda text: print(text, file=sys.stderr))
            result = await compare(case, model, Path(logs))
        at_once = "-" if result.concurrent is None else f"{result.concurrent}/{_PROMPTS}"
        print(
            f"{case.model:8} {case.page_size:4}  {case.chunk or '-':>5}  "
            f"{result.sequential:>7}/{_PROMPTS}  {at_once:>7}  {result.chunks:6}  "
            f"{result.moved / 1e6:12.2f}  {'equal' if result.passed else 'DIFFERENT'}",
            flush=True,
        )
        for problem in result.problems:
            print(f"  {problem}")
        if result.moved != result.expected:
            print(f"  {result.moved} bytes moved, {result.expected} were expected")
        good = good and result.passed
    return good


def main() -> None:
    """Run all cases, print a table, and exit with 1 if any answer differs."""
    parser = argparse.ArgumentParser(prog="ops.bench.parity")
    parser.add_argument("--part", choices=["tiny", "smollm2"], help="only this model")
    parser.add_argument("--models", type=Path, default=Path(".pdbus/models"))
    given = parser.parse_args()
    cases = tuple(case for case in CASES if given.part in (None, case.model))
    sys.exit(0 if asyncio.run(_run(cases, given.models)) else 1)


if __name__ == "__main__":
    main()
