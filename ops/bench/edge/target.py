"""What is measured: a whole stack with the scripted engine, or the direct engine."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from ops.bench.stack import process_tree
from ops.cli.stack.record import StackRecord, load

__all__ = [
    "MODEL",
    "Target",
    "cpu_seconds",
    "direct",
    "kernel_seconds",
    "rss_mib",
    "sleeps",
    "stack",
    "thread_seconds",
]

MODEL = "words"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_WAIT_S = 10.0
_SLOTS = "160"
_KV_TOKENS = "400000"
_WORKERS = frozenset({"prefill", "decode", "aggregated"})


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chat requests."""

    name: str
    port: int
    model: str
    groups: Mapping[str, tuple[int, ...]]
    """Process ids of each part."""
    record: StackRecord | None = None


def cpu_seconds(target: Target) -> dict[str, float]:
    """Return the CPU time that each part has used so far."""
    return {name: sum(map(thread_seconds, pids)) for name, pids in target.groups.items()}


def rss_mib(pid: int) -> float:
    """Return the resident memory of one process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * _PAGE_BYTES / 2**20


@contextmanager
def direct(folder: Path, step_ms: float) -> Generator[Target]:
    """Run the direct engine for the length of the context."""
    port_file = folder / f"direct-{step_ms}.port"
    command = [sys.executable, "-m", "ops.bench.edge.direct", "--step-ms", str(step_ms)]
    child = subprocess.Popen([*command, str(port_file)])
    try:
        until = time.monotonic() + _WAIT_S
        while not port_file.exists():
            if time.monotonic() > until or child.poll() is not None:
                raise RuntimeError("the direct engine did not start")
            time.sleep(0.02)
        yield Target("direct", int(port_file.read_text()), MODEL, {"engine": (child.pid,)})
    finally:
        child.terminate()
        child.wait()
        port_file.unlink(missing_ok=True)


@contextmanager
def stack(folder: Path, step_ms: float, *options: str) -> Generator[Target]:
    """Run one prefill, one decode and all services for the length of the context.

    Raises:
        CalledProcessError: the stack did not start or did not stop.
    """
    model = _write_model(folder)
    state = folder / f"state-{step_ms}"
    where = f"--state-dir={state}"
    env = {
        **os.environ,
        # As the direct engine, and those that other systems are measured with: it computes nothing.
        # The first token comes as soon as it can: only the pace of decode is that of an engine.
        "PDBUS_PREFILL_SCRIPT": _script(0.0),
        "PDBUS_DECODE_SCRIPT": _script(step_ms),
        "PDBUS_PREFILL_SLOTS": _SLOTS,
        "PDBUS_DECODE_SLOTS": _SLOTS,
        "PDBUS_PREFILL_KV_TOKENS": _KV_TOKENS,
        "PDBUS_DECODE_KV_TOKENS": _KV_TOKENS,
    }
    up = ("up", "--engine=scripted", f"--model={model}", "--port=0", where, "--detach", *options)
    _pdbus(*up, env=env)
    try:
        record = load(state)
        if record is None:
            raise RuntimeError(f"no record of a stack in {state}")
        yield Target("pdbus", _port(record), MODEL, _parts(record), record)
    finally:
        _pdbus("down", where, env=env)


def _script(step_ms: float) -> str:
    return json.dumps({"answer": "blind", "profile": {"step_s": step_ms / 1000}})


def _port(record: StackRecord) -> int:
    return int(record.urls[0].rpartition(":")[2])


def _parts(record: StackRecord) -> dict[str, tuple[int, ...]]:
    """Return the processes of a stack by what they do; engine hosts are below their workers."""
    parts: dict[str, tuple[int, ...]] = {"supervisor": (record.supervisor,)}
    for slot in record.slots:
        if slot.pid is None:
            continue
        own, *below = process_tree(slot.pid)
        name = "engines" if slot.role in _WORKERS else slot.role
        parts[slot.role] = (*parts.get(slot.role, ()), own)
        if below:
            parts[name] = (*parts.get(name, ()), *below)
    return parts


def _write_model(folder: Path) -> Path:
    """Write a model whose tokens are words: each one makes an event of its own."""
    place = folder / MODEL
    if place.exists():
        return place
    place.mkdir()
    plain = byte_vocabulary()
    made = (f"\u0120{a}{b}{c}" for a, b, c in itertools.product("bdgklmnrst", "aeiou", "nrl"))
    vocabulary = replace(plain, tokens=(*plain.tokens, *made))
    write_tokenizer(place, vocabulary)
    config = {
        "architectures": ["ScriptedForCausalLM"],
        "model_type": "scripted",
        "vocab_size": len(vocabulary.tokens),
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    (place / "config.json").write_text(json.dumps(config))
    return place


def thread_seconds(pid: int) -> float:
    """Return the time on a CPU of all threads that live, exact to nanoseconds."""
    spent = 0
    for entry in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(entry.read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return spent / 1e9


def kernel_seconds(pid: int) -> float:
    """Return the part of a process' CPU time that the kernel has used, in steps of a tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) * _TICK_S


def sleeps(pid: int) -> float:
    """Return how often the threads of a process that live have waited for something."""
    count = 0
    for entry in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            text = entry.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        line = next(line for line in text.splitlines() if line.startswith("voluntary"))
        count += int(line.split()[1])
    return count


def _pdbus(*arguments: str, env: Mapping[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=env,
    )
