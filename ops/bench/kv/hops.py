"""What handing over costs: a thread, another process and back, with nothing to move.

A transfer asked for by one thread of one process and served by another process needs four wakeups:
of the plane's thread, of the other process, of the plane's thread again, of whoever waits. Each is
a switch of the kernel, whatever the program is written in. `python -m ops.bench.kv.hops --fd N` is
the other process.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from typing import Any

from ops.bench.kv.contest import Partner, Round, cpu_of, serve_orders
from ops.bench.kv.shapes import Cell

__all__ = ["Hops", "main"]

_LEAST = 50
"""Rounds are at least so long, as one of these takes microseconds."""


class Hops:
    """The four wakeups of a transfer, without the transfer."""

    name = "four wakeups"

    def __init__(self) -> None:
        self._other = Partner(("ops.bench.kv.hops",))
        port = self._other(do="listen")
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._back = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def prepare(self, cell: Cell) -> None:
        """Do nothing."""

    def run(self, cell: Cell, transfers: int) -> Round:
        """Ask and be answered."""
        times = max(_LEAST, transfers)
        used = cpu_of(self._other.pid) + time.process_time()
        began = time.perf_counter()
        for _ in range(times):
            self._back.clear()
            os.eventfd_write(self._bell, 1)
            self._back.wait()
        seconds = time.perf_counter() - began
        used = cpu_of(self._other.pid) + time.process_time() - used
        return Round(seconds, used, 0, times)

    def close(self) -> None:
        """End the thread and the other process."""
        self._ending = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)
        self._socket.close()
        self._other.close()

    def _carry(self) -> None:
        while True:
            os.eventfd_read(self._bell)
            if self._ending:
                return
            self._socket.send(b"?")
            self._socket.recv(1)
            self._back.set()


def main() -> None:
    """Be the other process until the line closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    serve_orders(parser.parse_args().fd, _obey)


def _obey(_order: dict[str, Any]) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def _answer(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while peer.recv(1):
        peer.send(b"!")


if __name__ == "__main__":
    main()
