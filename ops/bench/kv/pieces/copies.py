"""Pieces gathered by one process and scattered by another, through slabs that both hold.

That is what the sysv lane does with the bytes. Nobody asks for them; a byte on a socket hands each
slab over, and each back. `python -m ops.bench.kv.pieces.copies --fd N` is the other process.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from typing import Any

from libs.transfer.api import KvLayout, PagePool
from libs.transfer.pages import PageStore
from libs.transfer.segment import Segment
from ops.bench.kv.contest import Partner, Round, cpu_of, serve_orders
from ops.bench.kv.ours import cell_text
from ops.bench.kv.serve import CHUNK_BYTES, cell_of
from ops.bench.kv.shapes import Cell, memory, places

__all__ = ["Copies", "main"]

_SLABS = 4


class Copies:
    """A cell's pieces gathered by one process and scattered by this one."""

    name = "gather, scatter"

    def __init__(self) -> None:
        self._other = Partner(("ops.bench.kv.pieces.copies",))
        port = self._other(do="listen")
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(60)

    def prepare(self, cell: Cell) -> None:
        """Make pages and slabs."""
        self._store = _store(cell)
        self._segment = Segment.make(_SLABS, _slab_bytes(cell))
        number, maker = self._segment.number, os.getpid()
        self._other(do="join", cell=cell_text(cell), segment=number, maker=maker)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Have it gathered, and scatter it."""
        used = cpu_of(self._other.pid) + time.process_time()
        began = time.perf_counter()
        self._other(do="gather", times=transfers)
        pages, step, turn = places(cell, 1), _slab_bytes(cell) // self._store.page_bytes, 0
        for _ in range(transfers):
            for at in range(0, len(pages), step):
                self._socket.recv(1)
                self._store.scatter_pages(pages[at : at + step], self._segment.slabs[turn % _SLABS])
                self._socket.send(b"!")
                turn += 1
        seconds = time.perf_counter() - began
        used = cpu_of(self._other.pid) + time.process_time() - used
        return Round(seconds, used, cell.moved * transfers, transfers)

    def close(self) -> None:
        """End the other process."""
        self._socket.close()
        self._other.close()


def _store(cell: Cell) -> PageStore:
    layout = KvLayout((cell.page_bytes,) * cell.layout.buffers, (), cell.page_tokens, "")
    size = 2 * cell.pages * cell.page_bytes
    pools = [memory(size).reshape(-1, cell.page_bytes) for _ in layout.page_bytes]
    return PageStore(layout, PagePool(pools), PagePool(()))


def _slab_bytes(cell: Cell) -> int:
    return max(CHUNK_BYTES, cell.page_bytes * cell.layout.buffers)


class _Other:
    """The other process."""

    def obey(self, order: dict[str, Any]) -> Any:
        """Carry out an order and return its answer."""
        match order["do"]:
            case "listen":
                listener = socket.create_server(("127.0.0.1", 0))
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
                return listener.getsockname()[1]
            case "join":
                self._cell = cell_of(order["cell"])
                self._store = _store(self._cell)
                size = _slab_bytes(self._cell)
                self._slabs = Segment.join(order["segment"], order["maker"], _SLABS, size).slabs
            case _:
                threading.Thread(target=self._gather, args=(order["times"],), daemon=True).start()
        return None

    def _accept(self, listener: socket.socket) -> None:
        self._peer, _ = listener.accept()
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _gather(self, times: int) -> None:
        pages, step = places(self._cell), len(self._slabs[0]) // self._store.page_bytes
        made = back = 0
        for _ in range(times):
            for at in range(0, len(pages), step):
                if made - back >= _SLABS:
                    back += len(self._peer.recv(_SLABS))
                self._store.gather_pages(pages[at : at + step], self._slabs[made % _SLABS])
                self._peer.send(b"!")
                made += 1
        while back < made:
            back += len(self._peer.recv(_SLABS))


def main() -> None:
    """Be the other process until the line closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    serve_orders(parser.parse_args().fd, _Other().obey)


if __name__ == "__main__":
    main()
