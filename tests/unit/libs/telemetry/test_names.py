"""The registry keeps its own naming rules."""

from __future__ import annotations

import re

from libs.telemetry import attributes, names
from libs.telemetry.kinds import Counter, Gauge, Histogram

UNITS = {"", "s", "By", "By/s", "1"}
BAD_ENDINGS = ("_total", "_counter", "_gauge", "_seconds", "_ms", "_mb", "_percent", "_time")
ID_LABELS = {"request_id", "rid", "trace_id", "room", "lease", "nonce", "incarnation"}


def test_names_are_unique():
    """No two metrics share a name."""
    assert len(names.METRICS_BY_NAME) == len(names.METRICS)


def test_names_and_units_follow_the_rule():
    """Names are lower-case dotted words without unit or kind; units are base units."""
    for metric in names.METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", metric.name), metric.name
        assert not metric.name.endswith(BAD_ENDINGS), metric.name
        assert metric.unit in UNITS or re.fullmatch(r"\{[a-z_]+\}", metric.unit), metric.name
        assert metric.text.endswith("."), metric.name


def test_no_label_is_an_id():
    """Labels are closed sets: an id would make a series per request."""
    for metric in names.METRICS:
        assert not ID_LABELS & set(metric.labels), metric.name


def test_kinds_have_what_they_need():
    """Only distributions have bounds, and these ascend."""
    for metric in names.METRICS:
        assert isinstance(metric, Counter | Gauge | Histogram)
        if isinstance(metric, Histogram):
            assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
            assert metric.buckets, metric.name


def test_attribute_names_are_unique_and_dotted():
    """An attribute is named once, by upstream's or by our own namespace."""
    values = [getattr(attributes, name) for name in attributes.__all__]
    assert len(set(values)) == len(values)
    for value in values:
        assert re.fullmatch(r"[a-z][a-z_]*(\.[a-z][a-z_]*)+", value), value
