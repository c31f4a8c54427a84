"""`pdbus` from outside: start, ask, look, stop. Each command is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ops.cli.stack.record import StackState, holder, load
from tests.support.http_client import chat_body, get, post
from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]


def pdbus(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of workers."""
    with run_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_over_http(stack: RunningStack, stream: bool) -> None:
    """A ready stack answers, streamed and whole, and both answers are the same."""
    assert (await get(stack.port, "/readyz")).status == 200
    reply = await post(stack.port, chat_body("What is this?", max_tokens=12, stream=stream))
    other = await post(stack.port, chat_body("What is this?", max_tokens=12, stream=not stream))
    assert reply.claims_completeness
    assert reply.finish_reason in {"stop", "length"}
    assert reply.text == other.text != ""


def test_chat_prints_the_answer_and_trace_draws_it(stack: RunningStack) -> None:
    """`chat` prints text and id; `trace` of that id tells bytes, lane and both leases."""
    where = f"--state-dir={stack.state_dir}"
    asked = pdbus("chat", "Hello", "--max-tokens=6", where)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip()
    rid = asked.stderr.split()[-1]
    deadline = time.monotonic() + 5
    while True:
        events = [
            json.loads(line) for line in pdbus("trace", rid, "--json", where).stdout.splitlines()
        ]
        freed = [event for event in events if event["kind"] == "lease.freed"]
        if len(freed) == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert {event["data"]["side"] for event in freed} == {"src", "dst"}
    moved = next(e["data"] for e in events if e["kind"] == "stage.transfer")
    assert moved["moved_bytes"] == moved["expected_bytes"] > 0
    drawn = pdbus("trace", f"chatcmpl-{rid}", where).stdout
    stages = ("place", "prefill queue", "prefill", "KV transfer", "first token", "decode")
    assert [s for s in stages if s in drawn] == list(stages)
    assert f"lane {moved['lane']}" in " ".join(drawn.split())


def test_workers_lists_every_process(stack: RunningStack) -> None:
    """`workers --json` names each process of the stack once, with its state."""
    told = pdbus("workers", "--json", f"--state-dir={stack.state_dir}")
    beats = [json.loads(line) for line in told.stdout.splitlines()]
    expected = {slot.instance for slot in stack.record.slots if slot.role != "nats"}
    assert {beat["instance"] for beat in beats} == expected
    assert {beat["state"] for beat in beats} == {"ready"}


def test_expected_failures_are_one_line(stack: RunningStack, tmp_path: Path) -> None:
    """What a user can get wrong ends with one line and a non-zero code, never a traceback."""
    where = f"--state-dir={stack.state_dir}"
    wrong = (
        ("chat", "Hello", "--model=absent", where),
        ("chat", "Hello", "--url=http://127.0.0.1:9", "--model=scripted"),
        ("trace", "0" * 26, where),
        ("trace", "nonsense", where),
        ("workers", f"--state-dir={tmp_path}"),
        ("down", f"--state-dir={tmp_path}"),
        ("up", "--engine=scripted", where),
        ("up", "--engine=scripted", f"--port={stack.port}", f"--state-dir={tmp_path / 'a'}"),
        ("up", "--engine=sglang", "--model=scripted", "--port=0", f"--state-dir={tmp_path / 'b'}"),
    )
    with ThreadPoolExecutor(4) as pool:
        ended = pool.map(lambda arguments: pdbus(*arguments), wrong)
    for arguments, failed in zip(wrong, ended, strict=True):
        assert failed.returncode != 0, arguments
        assert failed.stderr.startswith("pdbus: "), (arguments, failed.stderr)
        assert len(failed.stderr.splitlines()) == 1, (arguments, failed.stderr)


def test_detached_stacks_run_side_by_side_and_go_down(tmp_path: Path) -> None:
    """`up --detach` returns when ready; two stacks do not disturb each other; `down` ends one."""
    places = [tmp_path / "a", tmp_path / "b"]
    options = ("--engine=scripted", "--port=0", "--prefill=0", "--decode=0", "--aggregated=1")
    begin = [("up", *options, "--detach", f"--state-dir={place}") for place in places]
    try:
        with ThreadPoolExecutor() as pool:
            for started in pool.map(lambda arguments: pdbus(*arguments), begin):
                assert started.returncode == 0, started.stderr
        for place in places:
            assert pdbus("chat", "Hi", "--max-tokens=3", f"--state-dir={place}").returncode == 0
        first = load(places[0])
        assert first is not None
        processes = family(first.supervisor)
        assert pdbus("down", f"--state-dir={places[0]}").returncode == 0
        psutil.wait_procs(processes, timeout=5)
        assert not [process for process in processes if process.is_running()]
        assert pdbus("chat", "Hi", "--max-tokens=3", f"--state-dir={places[1]}").returncode == 0
    finally:
        for place in places:
            if holder(place) is not None:
                pdbus("down", f"--state-dir={place}")


def test_run_once_shows_answer_and_waterfall(tmp_path: Path) -> None:
    """`run --once` starts a stack, prints question, answer and stages, and ends with 0."""
    ran = pdbus("run", "--engine=scripted", "--port=0", "--once", f"--state-dir={tmp_path}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "What is the capital of France?" in ran.stdout
    assert "lane" in ran.stdout
    assert "lease.freed" in ran.stdout
    assert holder(tmp_path) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_stack(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C, SIGTERM or SIGKILL of the supervisor no process of the stack is left."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "ops.cli", "up", "--engine=scripted", "--port=0"),
            f"--state-dir={tmp_path}",
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    ) as supervisor:
        deadline = time.monotonic() + 60
        while (record := load(tmp_path)) is None or record.state is not StackState.READY:
            assert supervisor.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        processes = family(supervisor.pid)
        assert len(processes) > 8
        os.kill(supervisor.pid, number)
        code = supervisor.wait(30)
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    psutil.wait_procs(processes[1:], timeout=5)
    assert not [p.cmdline() for p in processes[1:] if p.is_running()]
