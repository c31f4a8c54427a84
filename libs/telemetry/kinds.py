"""The kinds of metric, as values: what a name in `names.py` says about its instrument."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its OpenTelemetry name, its unit (UCUM), its meaning and its closed labels.

    There is one of each: it is found by what it is, and its facts are not compared for each count.
    """

    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Metric):
    """A number that only grows; counted with `count`."""


@dataclass(frozen=True, slots=True, eq=False)
class Gauge(Metric):
    """A number that is read when somebody asks; given with `gauge`."""


@dataclass(frozen=True, slots=True, eq=False)
class Histogram(Metric):
    """A distribution; each value is given with `observe`."""

    buckets: tuple[float, ...] = ()
    """Upper bounds, in the unit of the metric."""
