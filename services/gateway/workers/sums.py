"""The metrics of several processes as those of one. Pure.

Counts are summed, those of processes that are gone included: a sum never falls. What is true of a
moment is summed over the living only. A few gauges say what no sum could mean; the largest stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

__all__ = ["Sums"]

_COUNTED = frozenset({"counter", "histogram", "summary"})
_LARGEST = ("_info", "_created", "_start_time_seconds", "_max_fds")
"""Ends of the names of gauges that are not summed."""

Key = tuple[str, tuple[tuple[str, str], ...]]


class _Family:
    """One metric with all its series."""

    def __init__(self, like: Metric) -> None:
        self.like = like
        self.values: dict[Key, float] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        largest = self.like.type not in _COUNTED and self.like.name.endswith(_LARGEST)
        for sample in samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            before = self.values.get(key)
            if before is None:
                self.values[key] = sample.value
            else:
                self.values[key] = max(before, sample.value) if largest else before + sample.value

    def metric(self) -> Metric:
        made = Metric(self.like.name, self.like.documentation, self.like.type)
        for (name, labels), value in self.values.items():
            made.add_sample(name, dict(labels), value)
        return made


class Sums:
    """What each process said last, and what those that are gone had counted."""

    def __init__(self) -> None:
        self._living: dict[str, list[Metric]] = {}
        self._gone: dict[str, _Family] = {}

    def take(self, process: str, text: str) -> None:
        """Note what a process says of itself; it replaces what it said before.

        Raises:
            ValueError: the text is not in Prometheus' format.
        """
        self._living[process] = list(text_string_to_metric_families(text))

    def bury(self, process: str) -> None:
        """Keep the counts of a process that has ended, and nothing else of it."""
        for metric in self._living.pop(process, ()):
            if metric.type in _COUNTED:
                self._gone.setdefault(metric.name, _Family(metric)).add(metric.samples)

    def text(self) -> str:
        """Return all of it in Prometheus' text format."""
        return generate_latest(_Registry(self._merged())).decode()

    def _merged(self) -> Iterator[Metric]:
        merged: dict[str, _Family] = {}
        for name, family in self._gone.items():
            copy = merged[name] = _Family(family.like)
            copy.values.update(family.values)
        for metrics in self._living.values():
            for metric in metrics:
                merged.setdefault(metric.name, _Family(metric)).add(metric.samples)
        return (family.metric() for family in merged.values())


class _Registry(CollectorRegistry):
    """Some metrics, in the form in which they can be written."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
