"""Telemetry of a whole process, each test in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

SETUP = """
from libs.telemetry import *
from libs.telemetry import names
t = setup_telemetry(service="router", instance="router-1", version="1.2.3", log_level="info")
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP + code],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
        env=os.environ | env,
    )


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_log_lines_are_json_with_all_identities():
    """A line names its service, instance, trace and bound request; nothing goes to stdout."""
    done = run(
        "with span('w'), log_context(request_id='r1'):\n"
        "    get_logger().info('request routed', worker='w1')\n"
        "    get_logger().debug('too small')\n"
        "get_logger().info('after')\n"
    )
    first, second = lines(done.stderr)
    assert first["event"] == "request routed"
    assert (first["service"], first["instance"]) == ("router", "router-1")
    assert first["request_id"] == "r1"
    assert len(str(first["trace_id"])) == 32
    assert first["level"] == "info"
    assert "request_id" not in second
    assert "trace_id" not in second
    assert done.stdout == ""


def test_lines_within_blocks_have_the_values_of_the_innermost():
    """Bound values and ids are those of the block that writes, and the outer ones come back."""
    caller = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    done = run(
        "from libs.telemetry import attach\n"
        f"with attach('{caller}'), log_context(request_id='r1', other=1):\n"
        "    with span('w'), log_context(request_id='r2'):\n"
        "        get_logger().info('inner')\n"
        "    with attach(None):\n"
        "        get_logger().info('apart')\n"
        "    get_logger().info('outer')\n"
    )
    inner, apart, outer = lines(done.stderr)
    assert (inner["request_id"], inner["other"]) == ("r2", 1)
    assert (inner["trace_id"], inner["span_id"]) == ("ab" * 16, "cd" * 8)
    assert "trace_id" not in apart
    assert (outer["request_id"], outer["other"]) == ("r1", 1)
    assert (outer["trace_id"], outer["span_id"]) == ("ab" * 16, "cd" * 8)


def test_an_exception_is_logged_as_data_without_local_values():
    """A traceback is structured; values of local variables are not in it."""
    done = run(
        "def f():\n"
        "    prompt = 'local-value'\n"
        "    return 1 // 0\n"
        "try:\n"
        "    f()\n"
        "except ZeroDivisionError:\n"
        "    get_logger().exception('task failed')\n"
    )
    (line,) = lines(done.stderr)
    assert "ZeroDivisionError" in json.dumps(line["exception"])
    assert "local-value" not in done.stderr


def test_lines_of_libraries_have_the_same_form():
    """Warnings of third-party loggers come as JSON with our identities; their info lines do not."""
    done = run(
        "import logging\n"
        "logging.getLogger('nats.aio').warning('slow %s', 'x')\n"
        "logging.getLogger('nats.aio').info('chatter')\n"
    )
    (line,) = lines(done.stderr)
    assert (line["event"], line["logger"], line["service"]) == ("slow x", "nats.aio", "router")


def test_metrics_are_shown_in_prometheus_form():
    """Counters end in `_total`, seconds are named, and series carry no scope labels."""
    done = run(
        "count(names.TASK_FAILURES, task='a')\n"
        "observe(names.GATEWAY_TTFT, 0.2, model_name='m')\n"
        "gauge(names.READY, lambda: 1, service='router')\n"
        "print(metrics_text())\n"
    )
    assert 'pdbus_task_failures_total{task="a"} 1.0' in done.stdout
    assert 'pdbus_gateway_time_to_first_token_seconds_bucket{le="0.25",model_name="m"} 1.0' in (
        done.stdout
    )
    assert 'pdbus_ready{service="router"} 1.0' in done.stdout
    assert 'pdbus_build_info{service="router",version="1.2.3"} 1.0' in done.stdout
    assert "otel_scope" not in done.stdout


class _Collector(BaseHTTPRequestHandler):
    paths: list[str] = []
    bodies: list[bytes] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_spans_and_metrics_are_exported_where_an_endpoint_is_named():
    """With OTEL_EXPORTER_OTLP_ENDPOINT the last spans and metrics arrive before the exit."""
    server = HTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        run(
            "with span('router.plan'): count(names.TASK_FAILURES, task='a')\nassert t.shutdown()\n",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
        )
    finally:
        server.shutdown()
        server.server_close()
    assert set(_Collector.paths) == {"/v1/traces", "/v1/metrics"}
    everything = b"".join(_Collector.bodies)
    assert b"router.plan" in everything
    assert b"pdbus.task_failures" in everything
    assert b"router-1" in everything


def test_an_unreachable_collector_delays_the_end_by_the_limit_at_most():
    """Shutting down gives up after its limit instead of waiting for a collector."""
    done = run(
        "import time\n"
        "with span('w'): pass\n"
        "start = time.monotonic()\n"
        "t.shutdown(1.0)\n"
        "print(time.monotonic() - start < 3.0)\n",
        # A port of the loopback interface that nobody listens on.
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert done.stdout.strip() == "True"
