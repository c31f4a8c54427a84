"""Ending TCP connections of other processes, as a network between them would that resets them."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["sever"]

_PIDFD_GETFD = 438
"""The number of the system call, the same on all machines; it takes the right to trace."""
_ESTABLISHED = "01"
_LIBC = ctypes.CDLL(None, use_errno=True)


def sever(one: int, other: int) -> int:
    """Shut down all TCP connections between two processes; return how many there were.

    Raises:
        OSError: we may not touch a process' sockets.
    """
    ends = {(theirs, ours) for ours, theirs in _connections(other).values()}
    doomed = [fd for fd, end in _connections(one).items() if end in ends]
    # All copies first: the process closes what is left when it sees the first one end.
    lines = [line for fd in doomed if (line := _copy(one, fd)) is not None]
    for line in lines:
        with line, suppress(OSError):  # it ended by itself a moment ago
            line.shutdown(socket.SHUT_RDWR)
    return len(lines)


def _connections(pid: int) -> dict[int, tuple[str, str]]:
    """Return own and foreign address of each open connection, by descriptor."""
    known = dict(_table(pid))
    found: dict[int, tuple[str, str]] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            place = known.get(entry.readlink().name)
            if place is not None:
                found[int(entry.name)] = place
    return found


def _table(pid: int) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # no such protocol here, or the process is gone
            for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == _ESTABLISHED:
                    yield f"socket:[{fields[9]}]", (fields[1], fields[2])


def _copy(pid: int, fd: int) -> socket.socket | None:
    """Return a copy of another process' socket, None if it is closed by now."""
    process = os.pidfd_open(pid)
    try:
        copy = _LIBC.syscall(_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        number = ctypes.get_errno()
        if number == errno.EBADF:
            return None
        raise OSError(number, f"the sockets of process {pid} may not be touched")
    return socket.socket(fileno=copy)
