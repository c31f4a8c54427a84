"""Every call that emits a metric names one of the registry, and only its labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from libs.telemetry import names
from libs.telemetry.kinds import Counter, Gauge, Histogram, Metric

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"count": Counter, "observe": Histogram, "gauge": Gauge}


def calls() -> Iterator[tuple[str, ast.Call]]:
    for room in ("libs", "services", "ops"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Name(id="count" | "observe" | "gauge"),
                        args=[ast.Attribute(value=ast.Name(id="names")), *_],
                    ):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", node
                    case _:
                        pass


def faults() -> Iterator[str]:
    for place, call in calls():
        assert isinstance(call.func, ast.Name)
        argument = call.args[0]
        assert isinstance(argument, ast.Attribute)
        metric = getattr(names, argument.attr, None)
        if not isinstance(metric, Metric):
            yield f"{place}: {argument.attr} is not in names.py"
        elif not isinstance(metric, KINDS[call.func.id]):
            yield f"{place}: {call.func.id}() does not fit {argument.attr}"
        else:
            given = {word.arg for word in call.keywords if word.arg is not None}
            for label in given - set(metric.labels) - {"value", "callback"}:
                yield f"{place}: {argument.attr} has no label {label!r}"


def test_calls_use_declared_metrics_and_labels():
    """No call names an unknown metric, the wrong kind, or a label that is not declared."""
    assert list(faults()) == []


def test_the_scan_sees_calls():
    """The scan finds calls at all, so that the test above can fail."""
    assert any("tasks.py" in place for place, _ in calls())
