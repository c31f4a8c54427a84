"""What the machine can do: one copy in one process, one out of another, a plain socket.

Most move one run of bytes, one the pieces that a cell has; nobody asks and nobody is told.
`python -m ops.bench.kv.floor --fd N` is the other process.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from libs.transfer.api import PlaneSettings
from libs.transfer.crew import Crew, threads_for
from libs.transfer.pages import Pages as Places
from libs.transfer.reach import ENTRY, Table, pull, pull_shared, table_of
from ops.bench.kv.contest import Partner, Round, Unavailable, cpu_of, serve_orders
from ops.bench.kv.shapes import Cell, memory, places

__all__ = ["Memcpy", "Perftest", "Pieces", "Read", "Tcp", "main"]

_BUFFER = 4 << 20
_MOST_PIECES = 1 << 15
_RATE = re.compile(r"^Final:\s+\d+\s+\S+\s+\S+\s+\S+\s+(\S+)", re.MULTILINE)


class Memcpy:
    """One copy within a process."""

    name = "memcpy"

    def prepare(self, cell: Cell) -> None:
        """Touch both ends."""
        self._source, self._target = memory(cell.moved), memory(cell.moved)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Copy."""
        used, began = time.process_time(), time.perf_counter()
        for _ in range(transfers):
            np.copyto(self._target, self._source)
        seconds = time.perf_counter() - began
        return Round(seconds, time.process_time() - used, cell.moved * transfers, transfers)

    def close(self) -> None:
        """Do nothing."""


class Read:
    """`process_vm_readv`, the kernel's one copy from process to process."""

    name = "process_vm_readv"

    def __init__(self) -> None:
        self._other = Partner(("ops.bench.kv.floor",))

    def prepare(self, cell: Cell) -> None:
        """Have the other process fill its memory."""
        self._target = memory(cell.moved)
        at = self._other(do="memory", size=cell.moved)
        self._tables = (table_of(((at, cell.moved),)),)
        self._tables += (table_of(((self._target.ctypes.data, cell.moved),)),)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Read."""
        used, began = time.process_time(), time.perf_counter()
        for _ in range(transfers):
            pull(self._other.pid, *self._tables)
        seconds = time.perf_counter() - began
        return Round(seconds, time.process_time() - used, cell.moved * transfers, transfers)

    def close(self) -> None:
        """End the other process."""
        self._other.close()


class Pieces:
    """`process_vm_readv` of a cell's own pieces, which lie on both sides as a plane's do.

    Args:
        shared: whether threads share a long read, as many as those of a plane.
    """

    name = "readv of pieces"
    shared_name = "readv, shared"

    def __init__(self, *, shared: bool = False) -> None:
        settings = PlaneSettings()
        threads = threads_for(settings.copy_threads)
        self._crew = Crew(threads if shared else 1, settings.shared_copy_bytes)
        self._shared = shared
        self._other = Partner(("ops.bench.kv.floor",))

    def prepare(self, cell: Cell) -> None:
        """Make pools on both sides and say where the pieces are."""
        if self._shared and not self._crew.is_worth(cell.moved):
            raise Unavailable("too short, or too few cores to share it")
        if cell.pieces > _MOST_PIECES:
            raise Unavailable(f"{cell.pieces} pieces: the kernel's work for each is all there is")
        size = 2 * cell.pages * cell.page_bytes
        there: list[int] = self._other(do="pools", count=cell.layout.buffers, size=size)
        self._pools = [memory(size) for _ in range(cell.layout.buffers)]
        here = [pool.ctypes.data for pool in self._pools]
        self._tables = tuple(
            _runs(bases, places(cell, seed), cell.page_bytes)
            for seed, bases in enumerate((there, here))
        )

    def run(self, cell: Cell, transfers: int) -> Round:
        """Read."""
        used, began = time.process_time(), time.perf_counter()
        for _ in range(transfers):
            if self._shared:
                pull_shared(self._other.pid, *self._tables, crew=self._crew)
            else:
                pull(self._other.pid, *self._tables)
        seconds = time.perf_counter() - began
        return Round(seconds, time.process_time() - used, cell.moved * transfers, transfers)

    def close(self) -> None:
        """End the threads and the other process."""
        self._crew.close()
        self._other.close()


def _runs(bases: Sequence[int], pages: Places, page_bytes: int) -> Table:
    """Return where the runs of neighbouring pages are in each pool."""
    edges = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
    counts = np.diff(edges, append=len(pages))
    table = np.empty((len(bases), len(edges)), ENTRY)
    table["at"] = np.array(bases, np.int64)[:, None] + pages[edges] * page_bytes
    table["length"] = counts * page_bytes
    return table.reshape(-1)


class Tcp:
    """A plain blocking socket.

    Args:
        host: the address on which the other process listens.
        before: what to start it with, such as another network namespace.
    """

    name = "tcp socket"

    def __init__(self, host: str = "127.0.0.1", before: Sequence[str] = ()) -> None:
        self._other = Partner(("ops.bench.kv.floor",), before=before)
        port = self._other(do="listen", host=host)
        self._socket = socket.create_connection((host, port), 10)
        self._socket.settimeout(60)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)

    def prepare(self, cell: Cell) -> None:
        """Make room."""
        self._target = memory(cell.moved)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Have it sent, and receive it."""
        view = self._target.data
        used = cpu_of(self._other.pid) + time.process_time()
        began = time.perf_counter()
        self._other(do="send", size=cell.moved, times=transfers)
        for _ in range(transfers):
            got = 0
            while got < cell.moved:
                got += self._socket.recv_into(view[got:])
        seconds = time.perf_counter() - began
        used = cpu_of(self._other.pid) + time.process_time() - used
        return Round(seconds, used, cell.moved * transfers, transfers)

    def close(self) -> None:
        """End both ends."""
        self._socket.close()
        self._other.close()


class Perftest:
    """`ucx_perftest` of the libucx wheel: tag messages on a lane, raw.

    Args:
        name: what it shows.
        arguments: more of its arguments.
        environment: UCX's settings.
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self._arguments = tuple(arguments)
        self._environment = {**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n", **environment}
        found = find_spec("libucx")
        folders = () if found is None else tuple(found.submodule_search_locations or ())
        programs = [Path(folder) / "bin" / "ucx_perftest" for folder in folders]
        self._program = next((program for program in programs if program.exists()), None)
        if self._program is None:
            raise Unavailable("the libucx wheel has no ucx_perftest here")
        self._environment["LD_LIBRARY_PATH"] = str(self._program.parents[1] / "lib")

    def prepare(self, cell: Cell) -> None:
        """Do nothing."""

    def run(self, cell: Cell, transfers: int) -> Round:
        """Run server and client once."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [str(self._program), "-p", port]
        server = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        size, times = str(cell.moved), str(max(2, transfers))
        test = ["-t", "tag_bw", "-s", size, "-n", times, "-w", "2", *self._arguments]
        try:
            time.sleep(0.2)
            client = subprocess.run(
                [*command[:3], "127.0.0.1", *test],
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable("ucx_perftest did not end") from error
        finally:
            server.kill()
            server.wait()
        found = _RATE.search(client.stdout)
        if found is None:
            raise Unavailable(f"ucx_perftest says: {client.stderr.strip()[-120:]}")
        seconds = cell.moved * transfers / (float(found[1]) * (1 << 20))
        return Round(seconds, 0.0, cell.moved * transfers, transfers)

    def close(self) -> None:
        """Do nothing."""


class _Other:
    """The other process."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)
        self._pools = [self._memory]
        self._peer: socket.socket | None = None

    def obey(self, order: dict[str, Any]) -> Any:
        """Carry out an order and return its answer."""
        match order["do"]:
            case "memory":
                self._memory = memory(order["size"])
                return self._memory.ctypes.data
            case "pools":
                self._pools = [memory(order["size"]) for _ in range(order["count"])]
                return [pool.ctypes.data for pool in self._pools]
            case "listen":
                listener = socket.create_server((order["host"], 0))
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
                return listener.getsockname()[1]
            case _:
                if len(self._memory) != order["size"]:
                    self._memory = memory(order["size"])
                threading.Thread(target=self._send, args=(order["times"],), daemon=True).start()
                return None

    def _accept(self, listener: socket.socket) -> None:
        self._peer, _ = listener.accept()
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)

    def _send(self, times: int) -> None:
        for _ in range(times):
            if self._peer is not None:
                self._peer.sendall(self._memory.data)


def main() -> None:
    """Be the other process until the line closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    serve_orders(parser.parse_args().fd, _Other().obey)


if __name__ == "__main__":
    main()
