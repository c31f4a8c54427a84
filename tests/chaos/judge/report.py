"""The report of a run, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tests.chaos.judge.figures import PHASES, Figures, Spread

__all__ = ["render"]

_MOST_SHOWN = 40


def render(figures: Figures) -> str:
    """Return some lines of text."""
    return "\n".join(_lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    yield f"submissions  {figures.submissions}  {_row(figures.outcomes)}"
    yield f"requests     {figures.records.total()}  {_row(figures.records)}"
    yield f"attempts     {_row(figures.attempts)}  keys {figures.keys}  events {figures.events}"
    share = figures.prefill_computed / max(1, figures.prefill_submitted)
    yield (
        f"prefill      {figures.prefill_computed} tokens computed, "
        f"{figures.prefill_submitted} submitted: {share:.3f}"
    )
    yield f"faults       {figures.faults.total()}"
    yield from _faults(figures)
    for name, spread in figures.cancels.items():
        yield f"freed        {name}: {spread}"
    for name, count in sorted(figures.remarks.items()):
        yield f"remark       {count} {name}"
    yield f"violations   {len(figures.violations)}"
    for text in figures.violations[:_MOST_SHOWN]:
        yield f"  {text}"


def _faults(figures: Figures) -> Iterator[str]:
    head = "".join(f"{phase:>10}" for phase in PHASES)
    yield f"  {'':18}{'n':>4}{head}  to ready, to first success (p50/most, s)"
    for kind, count in sorted(figures.faults.items()):
        cells = "".join(f"{figures.hit[kind][phase]:>10}" for phase in PHASES)
        times = "  ".join(_short(table, kind) for table in (figures.ready, figures.used))
        yield f"  {kind:18}{count:>4}{cells}  {times}".rstrip()


def _short(table: Mapping[str, Spread], kind: str) -> str:
    spread = table.get(kind)
    return f"{spread.p50:.1f}/{spread.most:.1f}" if spread is not None else ""


def _row(counts: Counter[str] | Counter[int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
