"""The parent of a gateway's processes: it starts all or says why not, and leaves none behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libs.bus.testing import NatsServer
from ops.cli.stack.process import children_of
from tests.support.words import NAME, write_words

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a message bus."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    try:
        server.start_blocking()
        yield server
    finally:
        server.stop()


def start(server: NatsServer, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a gateway of two processes."""
    model = folder / NAME
    if not model.exists():
        write_words(folder)
    command = [
        *(sys.executable, "-m", "services.gateway", "--workers", "2", "--nats", server.url),
        *("--model", NAME, "--model-path", str(model), "--port", "0"),
        *("--port-file", str(folder / "port"), "--drain-grace-s", "1", *more),
    ]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait(true: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Return whether a process still runs: whoever adopts the dead may be slow to take note."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_stop_ends_all(server: NatsServer, tmp_path: Path):
    """Both processes listen on one port; after SIGTERM none of them is left."""
    parent = start(server, tmp_path)
    try:
        wait((tmp_path / "port").exists)
        port = int((tmp_path / "port").read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
            assert answer.status == 200
        wait(lambda: len(children_of(parent.pid)) == 2)
        children = children_of(parent.pid)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30) == 0
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    finally:
        parent.kill()
        parent.communicate()


def test_a_killed_parent_takes_its_processes_along(server: NatsServer, tmp_path: Path):
    """Nobody goes on serving whom nobody watches."""
    parent = start(server, tmp_path)
    try:
        wait(lambda: len(children_of(parent.pid)) == 2)
        children = children_of(parent.pid)
        assert parent.stdout is not None
        listening = 0
        while listening < 2:
            listening += '"event":"http listening"' in parent.stdout.readline()
    finally:
        parent.kill()
        parent.communicate()
    wait(lambda: not [pid for pid in children if runs(pid)], 10)


def test_what_cannot_start_says_why(server: NatsServer, tmp_path: Path):
    """A key file that cannot be used ends the whole gateway, with the reason in its log."""
    bad = tmp_path / "keys.json"
    bad.write_text("{}")
    parent = start(server, tmp_path, "--keys", str(bad))
    try:
        text, _ = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == 1
    assert "keys.json cannot be used" in text
    assert '"another one starts"' not in text
