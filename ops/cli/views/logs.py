"""Reading the logs of a stack's processes."""

from __future__ import annotations

from pathlib import Path

from ops.cli.errors import CommandError

__all__ = ["last_lines"]

_BLOCK = 65_536


def last_lines(log_dir: Path, service: str | None, count: int) -> list[str]:
    """Return the last lines of each process' log, each with the name of its process.

    Args:
        log_dir: where the logs are.
        service: a process (`decode-0`) or a role (`decode`); None takes all.
        count: lines per process.

    Raises:
        CommandError: there is no such log.
    """
    files = sorted(log_dir.glob("*.log")) if log_dir.is_dir() else []
    chosen = [
        file
        for file in files
        if service is None or file.stem == service or file.stem.rpartition("-")[0] == service
    ]
    if not chosen:
        known = ", ".join(file.stem for file in files) or "none"
        message = f"no log of {service or 'any process'} in {log_dir}; there are: {known}"
        raise CommandError(message)
    return [f"{file.stem}: {line}" for file in chosen for line in _tail(file, count)]


def _tail(file: Path, count: int) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _BLOCK))
        return stream.read().decode(errors="replace").splitlines()[-count:]
