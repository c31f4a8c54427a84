"""Free TCP ports on this machine, below the range that the kernel gives to outgoing connections.

A port from the kernel's own range could be taken by somebody's outgoing connection while its
process restarts.
"""

from __future__ import annotations

import secrets
import socket

from ops.cli.errors import CommandError

__all__ = ["free_port", "is_free"]

_LOW = 20_000
_HIGH = 32_000
_TRIES = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a port that is free now."""
    for _ in range(_TRIES):
        port = _LOW + secrets.randbelow(_HIGH - _LOW)
        if is_free(port):
            return port
    message = "no free port was found on this machine"
    raise CommandError(message)
