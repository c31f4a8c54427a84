"""Runs many seeds, in several processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from tests.sim.world import Outcome, run_seed

__all__ = ["BLOCK", "Sweep", "processes_from_environment", "sweep"]

BLOCK = 25
_ONE_CORE = 1
_POLITE = 15


def processes_from_environment() -> int:
    """Return `PDBUS_SIM_PROCESSES`, or two where there are two cores."""
    given = os.environ.get("PDBUS_SIM_PROCESSES")
    return int(given) if given else min(2, os.cpu_count() or _ONE_CORE)


class Sweep:
    """Blocks of seeds, each run once and kept."""

    def __init__(self, seeds: range, pool: ProcessPoolExecutor | None) -> None:
        self.blocks = [seeds[first : first + BLOCK] for first in range(0, len(seeds), BLOCK)]
        self._pool = pool
        self._running = [pool.submit(_run, block) for block in self.blocks] if pool else []
        self._done: dict[int, list[Outcome]] = {}

    def block(self, number: int) -> list[Outcome]:
        """Return the outcomes of one block."""
        if number not in self._done:
            block = self.blocks[number]
            running = self._running[number].result() if self._pool else _run(block)
            self._done[number] = running
        return self._done[number]

    def outcomes(self) -> Iterator[Outcome]:
        """Go through all outcomes, in the order of seeds."""
        for number in range(len(self.blocks)):
            yield from self.block(number)


@contextmanager
def sweep(seeds: range, processes: int, *, polite: bool = False) -> Iterator[Sweep]:
    """Run seeds, begun at once in other processes if there are more than one.

    Args:
        seeds: which worlds.
        processes: how many at a time.
        polite: always in other processes, which take only what others leave of the processors.
    """
    if processes <= _ONE_CORE and not polite:
        yield Sweep(seeds, None)
        return
    with ProcessPoolExecutor(
        processes,
        mp_context=get_context("spawn"),
        initializer=os.nice,
        initargs=(_POLITE if polite else 0,),
    ) as pool:
        try:
            yield Sweep(seeds, pool)
        finally:
            pool.shutdown(cancel_futures=True)


def _run(seeds: Iterable[int]) -> list[Outcome]:
    return [run_seed(seed) for seed in seeds]
