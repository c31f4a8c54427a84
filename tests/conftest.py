"""Fixtures that all tests may use."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator

import pytest
import structlog
from blockbuster import blockbuster_ctx
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.checked.spec import SPEC

# Every chunk of KV that a worker of a test sends has a checksum.
os.environ.setdefault("PDBUS_PREFILL_KV_CHECKSUM_EVERY", "1")

ROOMS = ("proto", "libs", "services")
"""Code that must never block an event loop."""


def pytest_report_header() -> str:
    """Say against what the answers of gateways are checked."""
    if SPEC.is_file():
        return "answers: checked against OpenAI's schemas"
    return "answers: OpenAI's schemas are not beside this checkout; only orders are checked"


@pytest.fixture(autouse=True)
def _no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async unit test whose code under test blocks its event loop."""
    is_async = inspect.iscoroutinefunction(getattr(request.node, "obj", None))
    if is_async and "/unit/" in request.path.as_posix():
        with blockbuster_ctx(scanned_modules=list(ROOMS)):
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def _clean_logs() -> Iterator[None]:
    """Start and end each test without bound log values, and with the logs' first settings."""
    structlog.contextvars.clear_contextvars()
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def _span_exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # OpenTelemetry takes one provider a process.
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(_span_exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """Record the spans of this test; `get_finished_spans()` returns them."""
    _span_exporter.clear()
    return _span_exporter


@pytest.fixture(scope="session")
def _metric_reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader], shutdown_on_exit=False))
    return reader


@pytest.fixture
def metric(_metric_reader: InMemoryMetricReader) -> Callable[..., float]:
    """Read one metric: `metric(name, **labels)`; counters are cumulative over the process."""

    def read(name: str, **labels: object) -> float:
        data = _metric_reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for found in scope.metrics:
                    for point in found.data.data_points if found.name == name else ():
                        if dict(point.attributes or {}) == labels:
                            return point.count if hasattr(point, "count") else point.value
        return 0.0

    return read
