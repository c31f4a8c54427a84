"""Measure the data plane between two processes, from pages to pages.

`python -m ops.bench.kv [--lane sysv] [--sizes 65536,1048576] [--window 1] ...` prints, for each
size, the median and best GB/s of several rounds, microseconds a room, and CPU seconds per GB of
both processes. Pages are ready before decode asks; the clock runs from the ask until every room of
the round is usable.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from libs.transfer.api import Fetch, KvLayout, PagePool, PlaneSettings, RoomState
from libs.transfer.plane import UcxPlane
from proto.ids import Room
from proto.kv import Lane, PeerAddress

__all__ = ["main"]

_ROUND_BYTES = 256 << 20
_ROUND_ROOMS = 500
_FINAL = (RoomState.DONE, RoomState.FAILED)


class Engine:
    """One process: its pages and its plane."""

    def __init__(self, options: argparse.Namespace) -> None:
        layout = KvLayout(
            page_bytes=(options.page_bytes,) * options.buffers,
            row_bytes=(64,),
            page_tokens=1,
            compat="",
        )
        self.page = options.page_bytes * options.buffers
        self.count = max(1, max(options.sizes) // self.page)
        pages = [np.ones((self.count, options.page_bytes), np.uint8) for _ in layout.page_bytes]
        rows = [np.ones((8, 64), np.uint8)]
        settings = PlaneSettings(lanes=(options.lane,), chunk_bytes=options.chunk)
        self.woken = threading.Event()
        self.plane = UcxPlane(
            layout, PagePool(pages), PagePool(rows), settings, "engine", wake=self.woken.set
        )
        self._order = np.random.default_rng(0).permutation(self.count)

    def pages(self, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return scattered pages of about `size` bytes in all."""
        return self._order[: max(1, size // self.page)]


def serve(options: argparse.Namespace) -> None:
    """Be prefill: offer whatever the other end of the socket asks for."""
    engine = Engine(options)
    stream = socket.socket(fileno=options.serve).makefile("rw")
    address = base64.b64encode(msgspec.msgpack.encode(engine.plane.address)).decode()
    stream.write(json.dumps(address) + "\n")
    stream.flush()
    for line in stream:
        order = json.loads(line)
        for room in range(order["first"], order["first"] + order["rooms"]):
            offer = engine.plane.offer(Room(room))
            offer.push(engine.pages(order["size"]), first_page=0, last=True, row=0)
        stream.write(json.dumps(time.process_time()) + "\n")
        stream.flush()
    engine.plane.close()


class Prefill:
    """The serving process, from outside."""

    def __init__(self, options: argparse.Namespace, arguments: list[str]) -> None:
        mine, theirs = socket.socketpair()
        command = [sys.executable, "-m", "ops.bench.kv", *arguments, "--serve"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )
        theirs.close()
        self._socket = mine
        self._stream = mine.makefile("rw")
        self.address = msgspec.msgpack.decode(base64.b64decode(self._line()), type=PeerAddress)

    def offer(self, first: int, rooms: int, size: int) -> float:
        """Have rooms offered; return the CPU seconds that the process has used."""
        order = {"first": first, "rooms": rooms, "size": size}
        self._stream.write(json.dumps(order) + "\n")
        self._stream.flush()
        return float(self._line())

    def end(self) -> None:
        """End the process."""
        self._stream.close()
        self._socket.close()
        self._process.wait(10)

    def _line(self) -> Any:
        return json.loads(self._stream.readline())


def measure(options: argparse.Namespace, arguments: list[str]) -> None:
    """Be decode: fetch and time."""
    prefill = Prefill(options, arguments)
    engine = Engine(options)
    first = 1
    for size in options.sizes:
        rates: list[float] = []
        costs: list[float] = []
        times: list[float] = []
        rooms = max(2, min(_ROUND_ROOMS, _ROUND_BYTES // size))
        for turn in range(options.rounds + 1):
            used = prefill.offer(first, rooms, size) + time.process_time()
            seconds = _round(engine, prefill.address, range(first, first + rooms), size, options)
            used = prefill.offer(first + rooms, 0, size) + time.process_time() - used
            moved = len(engine.pages(size)) * engine.page * rooms / 1e9
            first += rooms
            if turn:
                rates.append(moved / seconds)
                times.append(seconds / rooms * 1e6)
                costs.append(used / moved)
        print(
            f"{options.lane} {size >> 10:6d} KiB  {statistics.median(rates):6.2f} GB/s"
            f" (best {max(rates):5.2f})  {statistics.median(times):8.0f} us"
            f"  {statistics.median(costs):5.2f} CPU s/GB"
        )
    engine.plane.close()
    prefill.end()


def _round(
    engine: Engine,
    source: PeerAddress,
    rooms: range,
    size: int,
    options: argparse.Namespace,
) -> float:
    """Fetch rooms, a window at a time; return the seconds it took."""
    pages = engine.pages(size)
    left: Iterator[int] = iter(rooms)
    flying: set[Fetch] = set()
    began = time.perf_counter()
    while True:
        engine.woken.clear()
        over = {fetch for fetch in flying if fetch.state in _FINAL}
        for fetch in over:
            if fetch.state is RoomState.FAILED:
                raise SystemExit(f"room failed: {fetch.failure}")
        flying -= over
        while len(flying) < options.window and (room := next(left, None)) is not None:
            flying.add(engine.plane.fetch(source, Room(room), pages, row=0, tokens=1))
        if not flying:
            return time.perf_counter() - began
        engine.woken.wait(1.0)


def main() -> None:
    """Measure, or serve a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lane", type=Lane, default=Lane.SYSV)
    parser.add_argument("--sizes", default="65536,1048576,16777216,67108864")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=1, help="rooms under way at once")
    parser.add_argument("--page-bytes", type=int, default=4096)
    parser.add_argument("--buffers", type=int, default=4)
    parser.add_argument("--chunk", type=int, default=PlaneSettings().chunk_bytes)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if options.serve is not None:
        serve(options)
    else:
        measure(options, sys.argv[1:])


if __name__ == "__main__":
    main()
