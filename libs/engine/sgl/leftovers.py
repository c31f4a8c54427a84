"""What SGLang needs from the machine, and what its killed processes leave on it."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["free_port", "remove_dead_segments"]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where SGLang puts them
_PATTERN = "sglang_loads_*.shm"
_YOUNGEST_S = 60.0


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def remove_dead_segments(
    directory: Path = _SHARED_MEMORY, processes: Path = Path("/proc"), now: float | None = None
) -> list[Path]:
    """Remove load segments that no process maps; return them.

    A segment younger than a minute stays: an engine that is starting may not have mapped it yet.
    """
    found = list(directory.glob(_PATTERN))
    if not found:
        return []
    mapped = _mapped(processes)
    at = time.time() if now is None else now
    removed: list[Path] = []
    for segment in found:
        # Another host may remove the same segment.
        with suppress(FileNotFoundError):
            if str(segment) not in mapped and at - segment.stat().st_mtime > _YOUNGEST_S:
                segment.unlink()
                removed.append(segment)
    return removed


def _mapped(processes: Path) -> set[str]:
    mapped: set[str] = set()
    for maps in processes.glob("[0-9]*/maps"):
        # A process may end, or belong to another user, while we look.
        with suppress(FileNotFoundError, PermissionError, ProcessLookupError):
            for line in maps.read_text(errors="replace").splitlines():
                if "sglang_loads_" in line:
                    mapped.add(line[line.index("/") :])
    return mapped
