"""The kinds of metric, as values: what a name in `names.py` says about its instrument."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its OpenTelemetry name, its unit (UCUM), its meaning and its closed labels."""

    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A number that only grows; counted with `count`."""


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A number that is read when somebody asks; given with `gauge`."""


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A distribution; each value is given with `observe`."""

    buckets: tuple[float, ...] = ()
    """Upper bounds, in the unit of the metric."""
