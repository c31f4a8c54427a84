"""Supervision, shown with small real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ops.cli.errors import CommandError
from ops.cli.stack import process
from ops.cli.stack.layout import SlotSpec
from ops.cli.stack.probe import http_ready
from ops.cli.stack.process import adopt_orphans
from ops.cli.stack.record import SlotState
from ops.cli.stack.supervisor import Supervisor

pytestmark = pytest.mark.integration

SERVER = """
import http.server, signal, subprocess, sys, pathlib, os
port, notes, name = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *a): pass
if name.startswith("host"):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    (notes / (name + ".child")).write_text(str(child.pid))
def leave(*_):
    with (notes / "ends").open("a") as f: f.write(name + "\\n")
    os._exit(0)
if name == "stubborn": signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, leave)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def _adoption_ends() -> Iterator[None]:
    """Adopt nobody after the test: what later tests orphan must reach whoever collects it."""
    yield
    process._prctl(process._PR_SET_CHILD_SUBREAPER, 0)


def spec(name: str, notes: Path, rank: int = 0, program: str = SERVER) -> SlotSpec:
    """Return a slot that runs a small HTTP server."""

    def argv(port: int) -> list[str]:
        return [sys.executable, "-S", "-c", program, str(port), str(notes), name]

    return SlotSpec(name, "router", f"router-{name}", rank, argv, http_ready)


@asynccontextmanager
async def running(*specs: SlotSpec, notes: Path) -> AsyncIterator[Supervisor]:
    """Run slots for the length of the context."""
    adopt_orphans()
    supervisor = Supervisor(specs, log_dir=notes, changed=lambda: None)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.kill()
        await supervisor.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_all_become_ready(tmp_path: Path) -> None:
    """The stack is ready when each process says so."""
    async with running(spec("a", tmp_path), spec("b", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        assert all(slot.pid for slot in supervisor.slots)


async def test_a_killed_process_comes_back_under_its_name(tmp_path: Path) -> None:
    """After kill -9 the slot has a new process with the same instance; others are untouched."""
    async with running(spec("a", tmp_path), spec("b", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        before = supervisor.slots
        assert before[0].pid is not None
        os.kill(before[0].pid, signal.SIGKILL)
        await until(lambda: supervisor.slots[0].restarts == 1 and supervisor.ready)
        after = supervisor.slots
        assert after[0].pid != before[0].pid
        assert after[0].instance == before[0].instance
        assert after[1] == before[1]


async def test_what_a_killed_process_left_behind_is_ended(tmp_path: Path) -> None:
    """A grandchild in a group of its own does not outlive its killed parent."""
    async with running(spec("host", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        grandchild = int((tmp_path / "host.child").read_text())
        assert psutil.pid_exists(grandchild)
        pid = supervisor.slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: supervisor.slots[0].restarts == 1 and supervisor.ready)
        assert not psutil.pid_exists(grandchild)


async def test_stop_goes_rank_by_rank(tmp_path: Path) -> None:
    """Processes end in the order of their ranks, and none is left."""
    specs = [spec(str(rank), tmp_path, rank) for rank in (2, 0, 1)]
    async with running(*specs, notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        pids = [slot.pid for slot in supervisor.slots if slot.pid]
        await supervisor.stop()
        assert (tmp_path / "ends").read_text().split() == ["0", "1", "2"]
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert all(slot.state is SlotState.STOPPED for slot in supervisor.slots)


async def test_a_second_signal_kills_the_stubborn(tmp_path: Path) -> None:
    """A process that ignores the order to end is gone at once when told for the second time."""
    async with running(spec("stubborn", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        stopping = asyncio.ensure_future(supervisor.stop())
        await asyncio.sleep(0.2)
        assert not stopping.done()
        supervisor.kill()
        async with asyncio.timeout(3):
            await stopping


async def test_a_process_that_cannot_start_is_given_up(tmp_path: Path) -> None:
    """Three quick ends without ever being ready fail the start with the last words of the log."""
    broken = spec("broken", tmp_path, program="raise SystemExit('the model is missing')")
    async with running(broken, notes=tmp_path) as supervisor:
        with pytest.raises(CommandError, match=r"broken does not start.*the model is missing"):
            await supervisor.wait_ready(20)


async def test_a_missing_program_is_given_up(tmp_path: Path) -> None:
    """A program that does not exist fails the start with a plain reason."""
    absent = SlotSpec("absent", "router", "router-x", 0, lambda _: ("/absent",), http_ready)
    async with running(absent, notes=tmp_path) as supervisor:
        with pytest.raises(CommandError, match="absent does not start: cannot be started"):
            await supervisor.wait_ready(20)


async def test_late_processes_are_named(tmp_path: Path) -> None:
    """When the time is over the failure names who is not ready."""
    silent = spec("silent", tmp_path, program="import time; time.sleep(60)")
    async with running(silent, notes=tmp_path) as supervisor:
        with pytest.raises(CommandError, match="silent"):
            await supervisor.wait_ready(0.3)


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    """After kill -9 of the supervisor no process of the stack lives on."""
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import test_supervisor as t
async def main():
    notes = Path({str(tmp_path)!r})
    async with t.running(t.spec("a", notes), notes=notes) as supervisor:
        await supervisor.wait_ready(10)
        print(supervisor.slots[0].pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        assert psutil.pid_exists(pid)
        child.kill()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert not psutil.pid_exists(pid)


def drains(name: str, notes: Path, program: str = SERVER) -> SlotSpec:
    """Return a slot whose orderly end is somebody's wish."""
    return replace(spec(name, notes, program=program), drained=frozenset({0}))


async def test_an_orderly_end_is_a_drain(tmp_path: Path) -> None:
    """A process that was told to end and does so with 0 is not replaced; others go on."""
    async with running(drains("a", tmp_path), drains("b", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        before = supervisor.slots
        assert before[0].pid is not None
        os.kill(before[0].pid, signal.SIGTERM)
        await until(lambda: supervisor.slots[0].state is SlotState.DRAINED)
        await asyncio.sleep(0.5)
        after = supervisor.slots
        assert (after[0].state, after[0].pid) == (SlotState.DRAINED, None)
        assert after[0].restarts == 0
        assert after[1] == before[1]


async def test_an_orderly_end_of_others_is_none(tmp_path: Path) -> None:
    """Where an exit code of 0 means nothing, as for nats-server, the process is replaced."""
    async with running(spec("a", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        pid = supervisor.slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        await until(lambda: supervisor.slots[0].restarts == 1 and supervisor.ready)


async def test_restart_lets_a_process_end_and_starts_another(tmp_path: Path) -> None:
    """The old process ends in order, the new one follows at once, and it was no crash."""
    async with running(drains("a", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        pid = supervisor.slots[0].pid
        supervisor.restart("a")
        assert supervisor.slots[0].state is SlotState.DRAINING
        await until(lambda: supervisor.ready and supervisor.slots[0].pid != pid)
        assert (tmp_path / "ends").read_text().split() == ["a"]
        assert supervisor.slots[0].restarts == 0


async def test_restart_starts_a_drained_process_again(tmp_path: Path) -> None:
    """A slot without a process gets one."""
    async with running(drains("a", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        pid = supervisor.slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        await until(lambda: supervisor.slots[0].state is SlotState.DRAINED)
        supervisor.restart("a")
        await until(lambda: supervisor.ready)


async def test_restart_asked_twice_signals_once(tmp_path: Path) -> None:
    """A second signal would cut the drain off, so a process gets only one."""
    program = SERVER.replace(
        "os._exit(0)", "import threading; threading.Timer(1, os._exit, (0,)).start()"
    )
    async with running(drains("a", tmp_path, program), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        pid = supervisor.slots[0].pid
        supervisor.restart("a")
        await asyncio.sleep(0.2)
        supervisor.restart("a")
        await until(lambda: supervisor.ready and supervisor.slots[0].pid != pid)
        assert (tmp_path / "ends").read_text().split() == ["a"]


async def test_stop_during_a_restart_signals_once(tmp_path: Path) -> None:
    """The stack ends while a process drains for its restart: it is not cut off, nor replaced."""
    program = SERVER.replace(
        "os._exit(0)", "import threading; threading.Timer(1, os._exit, (0,)).start()"
    )
    async with running(drains("a", tmp_path, program), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        supervisor.restart("a")
        await asyncio.sleep(0.1)
        await supervisor.stop()
        assert (tmp_path / "ends").read_text().split() == ["a"]
        assert supervisor.slots[0].state is SlotState.STOPPED


async def test_a_restart_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ignores the order is killed, and the next one follows."""
    monkeypatch.setattr("ops.cli.stack.supervisor.EXTRA_S", 0.2)
    adopt_orphans()
    supervisor = Supervisor(
        [drains("stubborn", tmp_path)], log_dir=tmp_path, changed=lambda: None, grace_s=0.2
    )
    supervisor.start()
    try:
        await supervisor.wait_ready(10)
        pid = supervisor.slots[0].pid
        supervisor.restart("stubborn")
        await until(lambda: supervisor.ready and supervisor.slots[0].pid != pid)
    finally:
        supervisor.kill()
        await supervisor.stop()


async def test_only_known_processes_are_restarted(tmp_path: Path) -> None:
    """A name that does not exist is refused."""
    async with running(drains("a", tmp_path), notes=tmp_path) as supervisor:
        with pytest.raises(CommandError, match="no process 'b'"):
            supervisor.restart("b")


async def test_a_slot_has_variables_of_its_own(tmp_path: Path) -> None:
    """A process sees what its slot adds to our environment, and its siblings do not."""
    mine = replace(spec("a", tmp_path), env={"PDBUS_ONLY_HERE": "yes"})
    async with running(mine, spec("b", tmp_path), notes=tmp_path) as supervisor:
        await supervisor.wait_ready(10)
        seen = [psutil.Process(slot.pid).environ() for slot in supervisor.slots]
        assert [environ.get("PDBUS_ONLY_HERE") for environ in seen] == ["yes", None]
        assert seen[0]["PATH"] == seen[1]["PATH"] == os.environ["PATH"]
