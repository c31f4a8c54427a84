"""Words for many outcomes: the summary, the crash matrix, and the stories of violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.sim.matrix import missing, table
from tests.sim.scenario.cells import Cell
from tests.sim.world import Outcome

__all__ = ["Tally", "summary", "tell"]


@dataclass(slots=True)
class Tally:
    """The sums of many worlds."""

    seeds: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    hits: Counter[Cell] = field(default_factory=Counter)
    bad: list[int] = field(default_factory=list)
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Take in one world."""
        self.seeds += 1
        self.shapes[outcome.shape] += 1
        self.endings.update(outcome.endings)
        self.states.update(outcome.states)
        self.faults.update(outcome.faults)
        self.events.update(outcome.events)
        self.facts.update(outcome.facts)
        self.hits.update(outcome.hits)
        self.remarks.update(remark.name for remark in outcome.remarks)
        self.broken.update(violation.name for violation in outcome.violations)
        if outcome.violations:
            self.bad.append(outcome.seed)
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s

    @property
    def missing(self) -> list[Cell]:
        """Cells of the crash matrix that no world reached."""
        return missing(self.hits)


def summary(outcomes: Iterable[Outcome], *, matrix: bool = False) -> str:
    """Return the figures of many seeds as lines."""
    tally = Tally()
    for outcome in outcomes:
        tally.add(outcome)
    cpu = tally.cpu_s or 1e-9
    speed = f"{tally.seeds / cpu:.1f} a second of one core, {tally.virtual_s / cpu:.0f} x real time"
    lost = ", ".join(f"{tally.events[kind]} {kind}" for kind in ("drop", "duplicate", "stale"))
    facts = tally.facts
    tokens = facts["prefill_tokens"] / max(1, facts["asked_tokens"])
    lines = [
        f"seeds       {tally.seeds}  ({speed}, {tally.steps} steps)",
        f"worlds      {_row(tally.shapes)}",
        f"asks        {facts['asks']}, {facts['asks_with_key']} with a key  {_row(tally.endings)}",
        f"requests    {facts['requests']}  {_row(tally.states)}",
        f"attempts    {facts['retries']} further, {facts['migrations']} migrations",
        f"take-overs  {facts['taken_over']}",
        f"prefills    {facts['prefill_runs']}, {tokens:.3f} x the tokens asked",
        f"crashes     {tally.faults['crash'] + tally.faults['engine']}",
        f"faults      {tally.faults.total()}  {_row(tally.faults)}",
        f"messages    {tally.events['message']} delivered; {lost}",
        f"remarks     {_row(tally.remarks)}",
        f"violations  {tally.broken.total()} in {len(tally.bad)} seeds  {_row(tally.broken)}",
    ]
    if tally.bad:
        lines.append(f"bad seeds   {' '.join(map(str, tally.bad[:40]))}")
    if matrix:
        lines += ["", table(tally.hits)]
        if tally.missing:
            cells = ", ".join(f"{row} in {state}" for row, state in tally.missing)
            lines.append(f"not reached: {cells}")
    return "\n".join(lines)


def tell(outcome: Outcome, *, full: bool = False) -> str:
    """Return the violations of one seed, with the events before them."""
    lines = [f"seed {outcome.seed} ({outcome.shape}), hash {outcome.digest}"]
    lines += [f"  {violation}" for violation in outcome.violations]
    if full:
        lines.append(outcome.story)
    lines.append(f"again: python -m tests.sim --seed {outcome.seed} --verbose")
    return "\n".join(lines)


def _row(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
