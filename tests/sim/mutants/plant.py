"""What a mutant is, how it is planted, and how it is found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tests.sim.world import run_seed

__all__ = [
    "Kill",
    "Mutant",
    "aimed",
    "first_kill",
    "mutant",
    "nothing",
    "only_aimed",
    "planted",
]

Patch = tuple[Any, str, Any]
"""The object, the name of its attribute, and what takes its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is broken, and the invariants of which one must tell."""

    breaks: frozenset[str]
    seed: int
    """A seed that finds it."""
    patches: tuple[Patch, ...]
    aims: tuple[Patch, ...] = ()
    """What brings its moment about more often than chance does, and breaks nothing by itself."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How a mutant was found."""

    seed: int
    names: tuple[str, ...]
    """The invariants that told."""


def mutant(breaks: str, seed: int, *patches: Patch) -> Mutant:
    """Return a mutant; `breaks` names invariants, separated by spaces."""
    return Mutant(frozenset(breaks.split()), seed, patches)


def aimed(bug: Mutant, *aims: Patch) -> Mutant:
    """Return a mutant whose moment is brought about."""
    return replace(bug, aims=aims)


def only_aimed(bug: Mutant) -> Mutant:
    """Return what brings a mutant's moment about, without the bug."""
    return replace(bug, patches=())


@contextmanager
def planted(bug: Mutant) -> Iterator[None]:
    """Break one rule for a while."""
    patches = [mock.patch.object(*patch) for patch in (*bug.aims, *bug.patches)]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def first_kill(bug: Mutant, seeds: Iterable[int]) -> Kill | None:
    """Return the first of some seeds in which a mutant breaks what it must break."""
    with planted(bug):
        for seed in seeds:
            found = {violation.name for violation in run_seed(seed, graves=False).violations}
            told = found & bug.breaks
            if told:
                return Kill(seed, tuple(sorted(told)))
    return None


async def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing, where something must be done."""
