"""Metrics by the names of the registry."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libs.telemetry import count, gauge, names, observe, observer
from libs.telemetry.kinds import Counter, Gauge, Histogram

Read = Callable[..., float]


def test_counts_add_up_by_label(metric: Read):
    """Each set of labels has its own sum."""
    before = metric("pdbus.task_failures", task="test-a")
    count(names.TASK_FAILURES, task="test-a")
    count(names.TASK_FAILURES, 2, task="test-a")
    count(names.TASK_FAILURES, task="test-b")
    assert metric("pdbus.task_failures", task="test-a") - before == 3


def test_observations_are_counted(metric: Read):
    """A distribution counts what it was given."""
    before = metric("pdbus.kv.transfer", lane="test")
    observe(names.KV_TRANSFER_SECONDS, 0.2, lane="test")
    assert metric("pdbus.kv.transfer", lane="test") - before == 1


def test_an_observer_gives_to_the_same_distribution(metric: Read):
    """What is given with labels that stay is counted beside what is given with labels each time."""
    before = metric("pdbus.kv.transfer", lane="bound")
    observer(names.KV_TRANSFER_SECONDS, lane="bound")(0.2)
    observe(names.KV_TRANSFER_SECONDS, 0.3, lane="bound")
    assert metric("pdbus.kv.transfer", lane="bound") - before == 2


def test_a_gauge_is_read_when_asked_for_and_can_be_removed(metric: Read):
    """A gauge shows the present value; after its removal it shows nothing."""
    values = [1.0]
    remove = gauge(names.READY, lambda: values[0], service="test")
    values[0] = 5.0
    assert metric("pdbus.ready", service="test") == 5.0
    remove()
    assert metric("pdbus.ready", service="test") == 0.0


def test_a_second_gauge_takes_the_place_of_the_first(metric: Read):
    """With the same labels the newest callback counts, and the old one's removal is harmless."""
    old = gauge(names.READY, lambda: 1.0, service="twice")
    gauge(names.READY, lambda: 2.0, service="twice")
    old()
    assert metric("pdbus.ready", service="twice") == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: count(Counter("pdbus.unknown", "", "no")),
        lambda: observe(Histogram("pdbus.unknown", "", "no"), 1),
        lambda: gauge(Gauge("pdbus.unknown", "", "no"), lambda: 1),
    ],
)
def test_a_metric_outside_the_registry_is_refused(call: Callable[[], object]):
    """Nothing can emit a metric that `names.py` does not know."""
    with pytest.raises(ValueError, match=r"pdbus\.unknown"):
        call()
