"""The idle cost of a whole stack: broker, five services, and their engines."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ops.bench.rig import cpu_seconds
from ops.cli.stack.record import load

__all__ = ["idle_stack", "process_tree"]

_SETTLE_S = 3.0
_MEASURE_S = 15.0


def idle_stack(model: str, models: Path, state: Path) -> float:
    """Start one prefill, one decode and all services; return the cores they use when idle.

    Raises:
        CalledProcessError: the stack did not start or did not stop.
    """
    where = ("--state-dir", str(state))
    more = ("--models-dir", str(models.resolve()), "--model", model, "--port", "0", "--detach")
    _pdbus("up", *where, *more)
    try:
        record = load(state)
        if record is None:
            raise RuntimeError(f"no record of a stack in {state}")
        time.sleep(_SETTLE_S)
        pids = process_tree(record.supervisor)
        before, begin = cpu_seconds(pids), time.perf_counter()
        time.sleep(_MEASURE_S)
        return (cpu_seconds(pids) - before) / (time.perf_counter() - begin)
    finally:
        _pdbus("down", *where)


def process_tree(root: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def _pdbus(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments], check=True, stdout=subprocess.DEVNULL
    )
