"""Telemetry of one process: set up once at its start, flushed at its end."""

from __future__ import annotations

import os
import platform
import threading
import time
from dataclasses import dataclass
from typing import TextIO

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from libs.telemetry import names
from libs.telemetry.logs import setup_logs
from libs.telemetry.metrics import gauge, make_meter_provider
from libs.telemetry.quiet import QuietTracerProvider
from libs.telemetry.traces import make_tracer_provider, otlp_enabled

__all__ = ["FLUSH_TIMEOUT_S", "Telemetry", "setup_telemetry"]

FLUSH_TIMEOUT_S = 2.0
"""Most time that a process spends on its last spans and metrics; the others left each second."""

_SELF_METRICS = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a process has set up."""

    tracer_provider: TracerProvider | QuietTracerProvider
    meter_provider: MeterProvider

    def shutdown(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Export what is left; return whether that was done in time. Blocks: call it last."""
        until = time.monotonic() + timeout_s
        # Exporters ignore deadlines while they retry: each ends in a thread that can be left.
        # A collector that hangs on spans must not cost the metrics.
        enders = [
            threading.Thread(target=self.tracer_provider.shutdown, daemon=True),
            threading.Thread(
                target=self.meter_provider.shutdown, args=(timeout_s * 1000,), daemon=True
            ),
        ]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(max(0.0, until - time.monotonic()))
        return not any(ender.is_alive() for ender in enders)


def setup_telemetry(
    *,
    service: str,
    instance: str,
    version: str,
    log_level: str = "info",
    stream: TextIO | None = None,
) -> Telemetry:
    """Set up logs, traces and metrics of this process; the `OTEL_*` variables work as documented.

    OpenTelemetry allows this once a process.
    """
    if otlp_enabled("TRACES"):
        # The SDK then counts the spans that live, were dropped, or could not be exported.
        os.environ.setdefault(_SELF_METRICS, "true")
    setup_logs(service=service, instance=instance, level=log_level, stream=stream)
    resource = Resource.create(
        {
            "service.name": service,
            "service.namespace": "pdbus",
            "service.instance.id": instance,
            "service.version": version,
            "host.name": platform.node(),
            "pdbus.role": service,
        }
    )
    telemetry = Telemetry(make_tracer_provider(resource), make_meter_provider(resource))
    trace.set_tracer_provider(telemetry.tracer_provider)
    metrics.set_meter_provider(telemetry.meter_provider)
    gauge(names.BUILD_INFO, lambda: 1, version=version, service=service)
    return telemetry
