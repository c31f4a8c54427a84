"""A real service process: start, signals, drain and exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.bus.testing import NatsServer

pytestmark = pytest.mark.integration

SERVICE = """
import asyncio
import gc
from libs.config import ServiceSettings
from libs.lifecycle import run
from libs.telemetry import get_logger

class Settings(ServiceSettings, frozen=True, kw_only=True):
    drain_s: float = 0.0
    start_s: float = 0.0
    fail: bool = False

class Service:
    def __init__(self, parts): self.parts, self.ready = parts, False
    async def start(self):
        await asyncio.sleep(self.parts.settings.start_s)
        self.parts.tasks.spawn(asyncio.Event().wait(), name="for ever")
        self.ready = True
    async def drain(self, grace_s):
        get_logger().info("heap", frozen=gc.get_freeze_count())
        await asyncio.sleep(self.parts.settings.drain_s)
    def readiness(self): return self.ready, "" if self.ready else "warming up"

async def build(parts):
    if parts.settings.fail: raise RuntimeError("no tokenizer")
    return Service(parts)

run("router", Settings, build)
"""


class Process:
    """A service process and its health port."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.port_file = folder / "port"
        self.folder = folder
        script = folder / "service.py"
        script.write_text(SERVICE)
        self.popen = subprocess.Popen(
            [sys.executable, str(script), "--port-file", str(self.port_file), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if "PDBUS" not in name},
        )

    def get(self, path: str) -> tuple[int, str]:
        wait(self.port_file.exists)
        url = f"http://127.0.0.1:{self.port_file.read_text().strip()}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_ready(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[dict[str, object]]]:
        self.popen.send_signal(number)
        return self.result()

    def result(self) -> tuple[int, list[dict[str, object]]]:
        _, errors = self.popen.communicate(timeout=20)
        return self.popen.returncode, [
            json.loads(line) for line in errors.splitlines() if line.startswith("{")
        ]


def wait(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    folder = tmp_path / "nats"
    folder.mkdir()
    server = NatsServer(folder)
    server.start_blocking()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path, nats: NatsServer) -> Iterator[object]:
    started: list[Process] = []

    def begin(*args: str) -> Process:
        process = Process(tmp_path, "--nats", nats.url, *args)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


def test_what_a_start_has_made_is_no_garbage_to_be_looked_for(start):
    """Collections under load look at what requests have made, not at modules and tokenizers."""
    process = start()
    process.wait_ready()
    _, lines = process.end()
    (heap,) = [line for line in lines if line["event"] == "heap"]
    assert isinstance(heap["frozen"], int)
    assert heap["frozen"] > 10_000


def test_a_service_tells_that_it_is_ready_and_ends_in_order(start):
    """One `ready` line comes when work may come; SIGTERM drains and exits with 0."""
    process = start("--instance", "router-test")
    line = process.wait_ready()
    assert line.startswith("ready router-test health_port=")
    assert process.get("/readyz")[0] == 200
    assert 'pdbus_ready{service="router"} 1.0' in process.get("/metrics")[1]
    code, lines = process.end()
    assert code == 0
    told = [line["event"] for line in lines if line["event"] != "heap"]
    assert told[-3:] == ["stop requested", "draining", "stopped"]


def test_health_answers_before_the_service_is_ready(start):
    """From the first moment a starting process is alive, and says why it is not ready."""
    process = start("--start-s", "30")
    assert process.get("/livez")[0] == 200
    status, body = process.get("/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "starting")
    code, _ = process.end(signal.SIGINT)
    assert code == 0


def test_a_drain_beyond_its_grace_is_cut(start):
    """A service that does not end within its grace is ended, with exit code 3."""
    process = start("--drain-s", "60", "--drain-grace-s", "0")
    process.wait_ready()
    process.popen.send_signal(signal.SIGTERM)
    wait(lambda: process.get("/readyz")[0] == 503)
    assert json.loads(process.get("/readyz")[1])["reason"] == "draining"
    code, _ = process.result()
    assert code == 3


def test_a_second_signal_ends_at_once(start):
    """An operator who asks twice does not wait."""
    process = start("--drain-s", "60", "--drain-grace-s", "60")
    process.wait_ready()
    process.popen.send_signal(signal.SIGTERM)
    wait(lambda: process.get("/readyz")[0] == 503)
    code, _ = process.end(signal.SIGTERM)
    assert code == 1


def test_a_bus_that_is_not_there_is_a_plain_reason(tmp_path: Path):
    """Without a server the process gives up after its limit, says why, and exits with 1."""
    process = Process(tmp_path, "--nats", "nats://127.0.0.1:9", "--start-timeout-s", "0.5")
    code, lines = process.result()
    assert code == 1
    (reason,) = [line["reason"] for line in lines if line["event"] == "cannot start"]
    assert "127.0.0.1:9" in str(reason)


def test_a_health_port_that_is_taken_is_a_plain_reason(tmp_path: Path):
    """OPS-05: a port that somebody else listens on is named, and the process exits with 1."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, lines = Process(tmp_path, "--health-port", str(port)).result()
    assert code == 1
    (reason,) = [line["reason"] for line in lines if line["event"] == "cannot start"]
    assert str(port) in str(reason)


def test_an_unforeseen_fault_is_one_log_line(start):
    """A failure that nobody foresaw ends the process with 1, a reason and a traceback."""
    code, lines = start("--fail").result()
    assert code == 1
    assert lines[-1]["event"] == "process failed"
    assert lines[-1]["reason"] == "RuntimeError: no tokenizer"
    assert "exception" in lines[-1]


def test_bad_settings_are_a_plain_text(tmp_path: Path):
    """A wrong flag exits with 2 and one line that names it."""
    process = Process(tmp_path, "--drain-s", "soon")
    _, errors = process.popen.communicate(timeout=20)
    assert process.popen.returncode == 2
    assert errors.count("\n") == 1
    assert "--drain-s" in errors


def test_a_lost_bus_makes_it_not_ready_and_a_found_one_ready_again(start, nats: NatsServer):
    """Readiness follows the bus; the process itself goes on."""
    process = start()
    process.wait_ready()
    nats.kill()
    wait(lambda: process.get("/readyz")[0] == 503)
    assert "bus" in json.loads(process.get("/readyz")[1])["reason"]
    nats.start_blocking()
    wait(lambda: process.get("/readyz")[0] == 200)
    assert process.end()[0] == 0


def test_the_process_dies_with_its_parent(tmp_path: Path, nats: NatsServer):
    """However the parent ends, a child that asked for it ends too."""
    child = [
        *(sys.executable, str(tmp_path / "service.py"), "--nats", nats.url),
        "--die-with-parent",
    ]
    (tmp_path / "service.py").write_text(SERVICE)
    code = f"import subprocess; p = subprocess.Popen({child!r}); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline().startswith("ready")
    parent.kill()
    parent.communicate()
    wait(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return "Z"
