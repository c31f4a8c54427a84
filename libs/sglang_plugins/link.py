"""The line from SGLang's scheduler process to the engine host: one way, never in the way."""

from __future__ import annotations

import socket
import threading
from collections import deque

from proto.backend import BackendMessage, PlaneFigures
from proto.base import encode

__all__ = ["HostLink"]

_BACKLOG = 4096


class HostLink:
    """Sends messages to the engine host; the scheduler's and the plane's thread may use it.

    A message is one packet. What the socket cannot take now waits for the next call, so that the
    scheduler never does.

    Raises:
        OSError: there is no engine host.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._waiting: deque[bytes] = deque(maxlen=_BACKLOG)
        self._figures = PlaneFigures(open_rooms=0, dropped_chunks=0)
        self._lock = threading.Lock()

    def send(self, message: BackendMessage) -> None:
        """Send a message after those that wait."""
        with self._lock:
            self._waiting.append(encode(message))
            self._flush()

    def figures(self, open_rooms: int, dropped_chunks: int) -> None:
        """Send the plane's counters if they have changed."""
        now = PlaneFigures(open_rooms=open_rooms, dropped_chunks=dropped_chunks)
        with self._lock:
            if now != self._figures:
                self._figures = now
                self._waiting.append(encode(now))
                self._flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Close the line; what waits is lost."""
        self._socket.close()

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # The host is gone and this process is about to be killed with it.
                self._waiting.clear()
                return
            self._waiting.popleft()
