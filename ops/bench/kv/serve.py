"""Prefill's process of a measurement: a plane whose pages are ready. `--fd` is its line."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from libs.transfer.api import KvLayout, PagePool, PlaneSettings
from libs.transfer.plane import UcxPlane
from ops.bench.kv.contest import serve_orders
from ops.bench.kv.profile.tape import Tape
from ops.bench.kv.shapes import LAYOUTS, Cell, memory, places
from proto.ids import Room
from proto.kv import Lane

__all__ = ["CHUNK_BYTES", "Memory", "cell_of", "main"]

_ROWS = 8
_ROW_BYTES = 64
CHUNK_BYTES = 4 << 20
_SWITCH_S = 0.0005
"""Both as engines are started."""


class Memory:
    """The pages and the plane of one engine.

    Args:
        cell: the largest that will be moved.
        lanes: what the plane may use.
        name: its incarnation.
        more: further settings of the plane.
    """

    def __init__(self, cell: Cell, lanes: Sequence[Lane], name: str, **more: Any) -> None:
        sys.setswitchinterval(_SWITCH_S)
        buffers = cell.layout.buffers
        layout = KvLayout(
            page_bytes=(cell.page_bytes,) * buffers,
            row_bytes=(_ROW_BYTES,),
            page_tokens=cell.page_tokens,
            compat="",
        )
        size = 2 * cell.pages * cell.page_bytes
        pages = [memory(size).reshape(-1, cell.page_bytes) for _ in range(buffers)]
        self.woken = threading.Event()
        self.tape = Tape()
        self.plane = UcxPlane(
            layout,
            PagePool(pages),
            PagePool([np.ones((_ROWS, _ROW_BYTES), np.uint8)]),
            PlaneSettings(lanes=tuple(lanes), chunk_bytes=CHUNK_BYTES, **more),
            name,
            wake=self.woken.set,
        )


def cell_of(text: str) -> Cell:
    """Return the cell that a JSON list says."""
    name, page, size, apart = json.loads(text)
    return Cell(LAYOUTS[name], page, size, apart)


def main() -> None:
    """Serve until the line closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cell", type=cell_of, required=True)
    parser.add_argument("--lanes", required=True)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args()
    lanes = [Lane(lane) for lane in given.lanes.split(",")]
    memory = Memory(given.cell, lanes, "prefill", **given.settings)
    serve_orders(given.fd, partial(_obey, memory))
    memory.plane.close()


def _obey(memory: Memory, order: dict[str, Any]) -> Any:
    match order.pop("do"):
        case "address":
            return base64.b64encode(msgspec.msgpack.encode(memory.plane.address)).decode()
        case "wind":
            memory.tape.wind()
            return None
        case "notes":
            return memory.tape.cut()
        case "offer":
            pages = places(cell_of(order["cell"]))
            for room in range(order["first"], order["first"] + order["rooms"]):
                offer = memory.plane.offer(Room(room))
                offer.push(pages, first_page=0, last=True, row=0)
            return None
        case _:
            return _compute(memory, **order)


def _compute(memory: Memory, cell: str, first: int, chunk_pages: int, chunk_s: float) -> float:
    """Push a prompt chunk by chunk, as it is computed; return when the last chunk was ready."""
    pages = places(cell_of(cell))
    offer = memory.plane.offer(Room(first))
    ready = due = time.monotonic()
    for at in range(0, len(pages), chunk_pages):
        due += chunk_s
        time.sleep(max(0.0, due - time.monotonic()))
        some, last = pages[at : at + chunk_pages], at + chunk_pages >= len(pages)
        ready = time.monotonic()
        offer.push(some, first_page=at, last=last, row=0 if last else None)
    return ready


if __name__ == "__main__":
    main()
