"""Metrics: counters, distributions and gauges by the names of `names.py`.

The instruments come from OpenTelemetry's process-wide provider, which does nothing until
`setup_telemetry` has set one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import REGISTRY, generate_latest

from libs.telemetry.distributions import Distribution, PlainMeterProvider
from libs.telemetry.kinds import Counter, Gauge, Histogram
from libs.telemetry.names import METRICS_BY_NAME
from libs.telemetry.traces import otlp_enabled

__all__ = ["count", "gauge", "make_meter_provider", "metrics_text", "observe", "observer"]

Label = str | int | bool
Read = Callable[[], float]

_SCOPE = "pdbus"


def count(name: Counter, value: float = 1, **labels: Label) -> None:
    """Add to a counter. Costs little: the sums are asked for when metrics are collected."""
    _counter(name).add(tuple(labels.items()), value)


def observe(name: Histogram, value: float, **labels: Label) -> None:
    """Give one value to a distribution."""
    _histogram(name).record(value, labels)


def observer(name: Histogram, **labels: Label) -> Callable[[float], None]:
    """Return what gives values to a distribution, for labels that stay: it costs the least."""
    key = tuple(labels.items())

    def give(value: float) -> None:
        # Asked for each time: the process may be set up after this was made.
        histogram = _histogram(name)
        if isinstance(histogram, Distribution):
            histogram.add(value, key)
        else:
            histogram.record(value, labels)

    return give


def gauge(name: Gauge, callback: Read, **labels: Label) -> Callable[[], None]:
    """Read a gauge with `callback` whenever metrics are collected; return how to end that.

    The callback may run on another thread: it must only read. A second callback with the same
    labels takes the place of the first.
    """
    readers = _readers(name)
    key = tuple(sorted(labels.items()))
    readers[key] = callback

    def remove() -> None:
        if readers.get(key) is callback:
            del readers[key]

    return remove


def metrics_text() -> str:
    """Return all metrics of this process in Prometheus' text format."""
    return generate_latest(REGISTRY).decode()


def make_meter_provider(resource: Resource) -> MeterProvider:
    """Return a provider that feeds `metrics_text`, and an OTLP endpoint where one is set up."""
    kind = MeterProvider if otlp_enabled("METRICS") else PlainMeterProvider
    # Both readers are loaded only where a process is set up: libraries stay cheap to import.
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415

    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False)]
    if otlp_enabled("METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,
        )

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    return kind(metric_readers=readers, resource=resource, shutdown_on_exit=False)


# Instruments are made once a process and name, as OpenTelemetry wants; the caches below hold what
# its process-wide provider would otherwise be asked for on each call.


class _Totals:
    """The sums of one counter by labels, for any thread."""

    def __init__(self) -> None:
        self._sums: dict[tuple[tuple[str, Label], ...], float] = {}
        self._lock = threading.Lock()

    def add(self, labels: tuple[tuple[str, Label], ...], value: float) -> None:
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + value

    def collect(self, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            sums = tuple(self._sums.items())
        # Call sites may name the same labels in another order.
        merged: dict[frozenset[tuple[str, Label]], float] = {}
        for labels, value in sums:
            key = frozenset(labels)
            merged[key] = merged.get(key, 0) + value
        return [Observation(value, dict(key)) for key, value in merged.items()]


@cache
def _counter(spec: Counter) -> _Totals:
    _check(spec)
    totals = _Totals()
    metrics.get_meter(_SCOPE).create_observable_counter(
        spec.name, [totals.collect], spec.unit, spec.text
    )
    return totals


@cache
def _histogram(spec: Histogram) -> metrics.Histogram | Distribution:
    _check(spec)
    provider = metrics.get_meter_provider()
    if isinstance(provider, PlainMeterProvider):
        return provider.distribution(spec)
    return metrics.get_meter(_SCOPE).create_histogram(
        spec.name, spec.unit, spec.text, explicit_bucket_boundaries_advisory=spec.buckets
    )


@cache
def _readers(spec: Gauge) -> dict[tuple[tuple[str, Label], ...], Read]:
    _check(spec)
    readers: dict[tuple[tuple[str, Label], ...], Read] = {}

    def collect(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(read(), dict(key)) for key, read in tuple(readers.items())]

    metrics.get_meter(_SCOPE).create_observable_gauge(spec.name, [collect], spec.unit, spec.text)
    return readers


def _check(spec: Counter | Gauge | Histogram) -> None:
    if METRICS_BY_NAME.get(spec.name) is not spec:
        message = f"metric {spec.name!r} is not in libs/telemetry/names.py"
        raise ValueError(message)
