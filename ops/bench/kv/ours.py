"""pdbus as a contestant: from decode's ask until all pages are usable there."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from libs.transfer.api import Fetch, RoomState
from ops.bench.kv.contest import Partner, Round, Unavailable, cpu_of, waited_of
from ops.bench.kv.profile.tape import Note
from ops.bench.kv.serve import Memory
from ops.bench.kv.shapes import Cell, places
from proto.errors import PdbusError
from proto.ids import Room
from proto.kv import Lane, PeerAddress

__all__ = ["Ours", "cell_text"]

_FINAL = (RoomState.DONE, RoomState.FAILED)
_IDLE_S = 5.0


class Ours:
    """Two engines' memories and planes on one lane.

    Args:
        lane: the lane.
        largest: the largest cell of the layout and page size that will be moved.
        window: rooms under way at once.
        before: what to start prefill's process with, such as another network namespace.
        interface: the network device of the TCP lane.
    """

    def __init__(
        self,
        lane: Lane,
        largest: Cell,
        window: int = 1,
        *,
        before: Sequence[str] = (),
        interface: str | None = None,
    ) -> None:
        self.name = f"pdbus {lane}" + (f" x{window}" if window > 1 else "")
        self._window = window
        self._rooms = count(1)
        more = {} if interface is None else {"interface": interface}
        arguments = ["--cell", cell_text(largest), "--lanes", str(lane)]
        if interface is not None:
            arguments += ["--settings", json.dumps({"interface": f"{interface}p"})]
        self.prefill = Partner(("ops.bench.kv.serve", *arguments), before=before)
        address = base64.b64decode(self.prefill(do="address"))
        self._source = msgspec.msgpack.decode(address, type=PeerAddress)
        try:
            self._memory = Memory(largest, (lane,), "decode", **more)
        except PdbusError as error:
            self.prefill.close()
            raise Unavailable(error.detail) from error

    def prepare(self, cell: Cell) -> None:
        """Move once, which links and warms up."""
        self.run(cell, 1)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Offer rooms, then fetch and time them."""
        rooms = [next(self._rooms) for _ in range(transfers)]
        self.prefill(do="offer", cell=cell_text(cell), first=rooms[0], rooms=transfers)
        pages = places(cell, seed=1)
        left = iter(rooms)
        flying: set[Fetch] = set()
        memory = self._memory
        waited = self._waited()
        used = cpu_of(self.prefill.pid) + time.process_time()
        began = time.perf_counter()
        while True:
            memory.woken.clear()
            over = {fetch for fetch in flying if fetch.state in _FINAL}
            for fetch in over:
                if fetch.state is RoomState.FAILED:
                    raise Unavailable(f"a room failed: {fetch.failure}")
            flying -= over
            while len(flying) < self._window and (room := next(left, None)) is not None:
                flying.add(memory.plane.fetch(self._source, Room(room), pages, row=0, tokens=1))
            if not flying:
                break
            memory.woken.wait(1.0)
        seconds = time.perf_counter() - began
        used = cpu_of(self.prefill.pid) + time.process_time() - used
        waited = self._waited() - waited
        return Round(seconds, used, cell.moved * transfers, transfers, waited)

    def overlapped(self, cell: Cell, chunk_pages: int, chunk_s: float) -> tuple[float, float]:
        """Move one prompt while it is computed.

        Returns:
            seconds from the ask until it was usable, and those after the last chunk was ready.
        """
        room = next(self._rooms)
        began = time.monotonic()
        memory = self._memory
        pages = places(cell, seed=1)
        fetch = memory.plane.fetch(self._source, Room(room), pages, row=0, tokens=1)
        ready = self.prefill(
            do="compute",
            cell=cell_text(cell),
            first=room,
            chunk_pages=chunk_pages,
            chunk_s=chunk_s,
        )
        while fetch.state not in _FINAL:
            memory.woken.wait(0.1)
            memory.woken.clear()
        if fetch.report is None or fetch.state is RoomState.FAILED:
            raise Unavailable(f"a room failed: {fetch.failure}")
        return fetch.report.total_s, max(0.0, began + fetch.report.total_s - ready)

    def wind(self) -> None:
        """Have both processes note what their planes do."""
        self._memory.tape.wind()
        self.prefill(do="wind")

    def noted(self, cell: Cell, pause_s: float) -> tuple[float, list[Note], list[Note]]:
        """Move once and wait; return the seconds, and decode's and prefill's notes meanwhile."""
        self._memory.tape.cut()
        self.prefill(do="notes")
        seconds = self.run(cell, 1).seconds
        time.sleep(pause_s)
        notes: list[list[Any]] = self.prefill(do="notes")
        return seconds, self._memory.tape.cut(), [Note(*note) for note in notes]

    def _waited(self) -> float:
        return waited_of(self.prefill.pid) + waited_of(os.getpid())

    def idle(self) -> float:
        """Return the cores that each engine's process uses while linked, with nothing to do."""
        used = cpu_of(self.prefill.pid) + time.process_time()
        time.sleep(_IDLE_S)
        return (cpu_of(self.prefill.pid) + time.process_time() - used) / _IDLE_S / 2

    def close(self) -> None:
        """End both planes."""
        self._memory.plane.close()
        self.prefill.close()


def cell_text(cell: Cell) -> str:
    """Return a cell as `serve.cell_of` reads it."""
    return json.dumps([cell.layout.name, cell.page_tokens, cell.size, cell.apart])
