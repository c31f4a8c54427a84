"""Distributions for processes whose metrics are only read as text: a value costs one addition.

OpenTelemetry's own histogram looks at its views, its readers and a sampler for each value, which
made it one of the larger costs of a request. Where an OTLP endpoint wants the metrics, that is the
price; where nobody but Prometheus reads them, these take its place under the same names.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from libs.telemetry.kinds import Histogram

__all__ = ["Distribution", "Labels", "PlainMeterProvider"]

Label = str | int | bool
Labels = tuple[tuple[str, Label], ...]

_UNITS = {"s": "seconds", "By": "bytes"}


@dataclass(slots=True)
class _Series:
    """The values of one set of labels."""

    counts: list[int]
    """By bucket, the last one without a bound."""
    total: float = 0.0


@dataclass(slots=True)
class Distribution:
    """All values of one histogram, by labels; for any thread."""

    spec: Histogram
    _series: dict[Labels, _Series] = field(default_factory=dict[Labels, _Series])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, value: float, labels: dict[str, Label]) -> None:
        """Take in one value."""
        self.add(value, tuple(labels.items()))

    def add(self, value: float, key: Labels) -> None:
        """Take in one value, the labels as they are kept."""
        with self._lock:
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = _Series([0] * (len(self.spec.buckets) + 1))
            series.counts[bisect_left(self.spec.buckets, value)] += 1
            series.total += value

    def family(self) -> HistogramMetricFamily:
        """Return what Prometheus is shown: labels that are not set are empty."""
        with self._lock:
            found = [(dict(key), list(one.counts), one.total) for key, one in self._series.items()]
        keys = sorted({key for labels, _, _ in found for key in labels})
        family = HistogramMetricFamily(
            self.spec.name.replace(".", "_"),
            self.spec.text,
            labels=[key.replace(".", "_") for key in keys],
            unit=_UNITS.get(self.spec.unit, ""),
        )
        merged: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for labels, counts, total in found:
            # Call sites may name the same labels in another order.
            values = tuple(_text(labels.get(key, "")) for key in keys)
            others, sum_so_far = merged.get(values, ([0] * len(counts), 0.0))
            merged[values] = (
                [a + b for a, b in zip(counts, others, strict=True)],
                total + sum_so_far,
            )
        for values, (counts, total) in merged.items():
            family.add_metric(values, self._buckets(counts), total)
        return family

    def _buckets(self, counts: list[int]) -> list[tuple[str, float]]:
        below, buckets = 0, list[tuple[str, float]]()
        for bound, number in zip((*self.spec.buckets, "+Inf"), counts, strict=True):
            below += number
            buckets.append((str(bound), below))
        return buckets


class PlainMeterProvider(MeterProvider, Collector):
    """OpenTelemetry's provider, but for distributions, which it shows to Prometheus itself."""

    _distributions: dict[str, Distribution] | None = None

    def distribution(self, spec: Histogram) -> Distribution:
        """Return the values of one histogram; the same one each time."""
        if self._distributions is None:
            self._distributions = {}
            REGISTRY.register(self)
        return self._distributions.setdefault(spec.name, Distribution(spec))

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is shows when it is collected."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all distributions that have values."""
        return [one.family() for one in (self._distributions or {}).values()]


def _text(value: Label) -> str:
    return value if isinstance(value, str) else json.dumps(value)
