"""Words for many outcomes: the summary and the stories of violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.sim.world import Outcome

__all__ = ["summary", "tell"]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the figures of many seeds as a few lines."""
    endings: Counter[str] = Counter()
    states: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    events: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    remarks: Counter[str] = Counter()
    for outcome in outcomes:
        endings += outcome.endings
        states += outcome.states
        faults += outcome.faults
        events += outcome.events
        remarks += Counter({remark.name for remark in outcome.remarks})
        broken += Counter({violation.name for violation in outcome.violations})
    wall = sum(outcome.wall_s for outcome in outcomes) or 1e-9
    virtual = sum(outcome.virtual_s for outcome in outcomes)
    steps = sum(outcome.steps for outcome in outcomes)
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    speed = f"{len(outcomes) / wall:.1f} a second, {virtual / wall:.0f} virtual seconds a second"
    lost = ", ".join(f"{events[kind]} {kind}" for kind in ("drop", "duplicate", "stale"))
    lines = [
        f"seeds       {len(outcomes)}  ({speed}, {steps} steps)",
        f"requests    {endings.total()}  {_row(endings)}",
        f"records     {_row(states)}",
        f"faults      {_row(faults)}",
        f"messages    {events['message']} delivered; {lost}",
        f"remarks     {_row(remarks)}",
        f"violations  {len(bad)} seeds  {_row(broken)}",
    ]
    if bad:
        lines.append(f"bad seeds   {' '.join(map(str, bad[:40]))}")
    return "\n".join(lines)


def tell(outcome: Outcome, *, full: bool = False) -> str:
    """Return the violations of one seed, with the events before them."""
    lines = [f"seed {outcome.seed}, hash {outcome.digest}"]
    lines += [f"  {violation}" for violation in outcome.violations]
    if full:
        lines.append(outcome.story)
    lines.append(f"again: python -m tests.sim --seed {outcome.seed} --verbose")
    return "\n".join(lines)


def _row(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
