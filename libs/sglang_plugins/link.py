"""The line from SGLang's scheduler process to the engine host: never in the way."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from proto.backend import BackendMessage, PlaneFigures
from proto.base import decode, encode
from proto.host import ProbePeer

__all__ = ["HostLink"]

_BACKLOG = 4096
_PACKET_BYTES = 1 << 16


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

    def listen(self, probe: Callable[[ProbePeer], None]) -> None:
        """Hear what the engine host asks, on a thread of its own that sleeps in between."""
        thread = threading.Thread(
            target=self._listen, args=(probe,), name="pdbus-host-link", daemon=True
        )
        thread.start()

    def figures(self, open_rooms: int, dropped_chunks: int, unshared_links: int) -> None:
        """Send the plane's counters if they have changed."""
        now = PlaneFigures(
            open_rooms=open_rooms, dropped_chunks=dropped_chunks, unshared_links=unshared_links
        )
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
        with suppress(OSError):  # the host has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self, probe: Callable[[ProbePeer], None]) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            poll.poll()
            try:
                packet = self._socket.recv(_PACKET_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # the host is gone, and this process goes with it
                return
            if not packet:
                return
            probe(decode(packet, ProbePeer))

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
