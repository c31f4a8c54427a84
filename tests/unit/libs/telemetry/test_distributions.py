"""Distributions that cost little show Prometheus what OpenTelemetry's own would show."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from libs.telemetry import names
from libs.telemetry.distributions import Distribution
from libs.telemetry.kinds import Histogram

VALUES = [
    (0.2, {"lane": "tcp", "role": "decode"}),
    (0.25, {"role": "decode", "lane": "tcp"}),
    (1e9, {"lane": "tcp", "role": "decode"}),
    (0.0, {"lane": "sysv", "role": "prefill"}),
    (3.0, {"lane": "sysv"}),
]


class Shown(Collector):
    """One distribution, as a registry reads it."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        return [self._distribution.family()]


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples of histograms."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in registry.collect()
        if metric.type == "histogram"
        for sample in metric.samples
    }


def ours_and_theirs(spec: Histogram, values: list[tuple[float, dict[str, str]]]):
    """Return the samples of both, for the same values."""
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=theirs)
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    instrument = provider.get_meter("x").create_histogram(
        spec.name, spec.unit, spec.text, explicit_bucket_boundaries_advisory=spec.buckets
    )
    distribution = Distribution(spec)
    ours.register(Shown(distribution))
    for value, labels in values:
        instrument.record(value, labels)
        distribution.record(value, labels)
    found = samples(ours), samples(theirs)
    provider.shutdown()
    return found


def test_seconds_by_label_look_the_same():
    """Names, labels, bounds, counts and sums are equal, whatever order labels are given in."""
    ours, theirs = ours_and_theirs(names.KV_TRANSFER_COPY_SECONDS, VALUES)
    assert ours == theirs
    assert ours


def test_numbers_without_a_unit_and_labels_with_dots_look_the_same():
    """Dots become underscores, and no unit is added where there is none."""
    ours, theirs = ours_and_theirs(names.GATEWAY_INPUT_TOKENS, [(7, {"model_name": "m"})])
    assert ours == theirs
    ours, theirs = ours_and_theirs(
        names.MESSAGING_PROCESS_DURATION, [(0.01, {"messaging.destination.template": "a.b"})]
    )
    assert ours == theirs


def test_no_value_of_another_thread_is_lost():
    """Threads may record at the same time."""
    distribution = Distribution(names.EVENT_LOOP_LAG)

    def record() -> None:
        for _ in range(2000):
            distribution.record(0.1, {})

    threads = [Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (count,) = [s.value for s in distribution.family().samples if s.name.endswith("_count")]
    assert count == 8000
