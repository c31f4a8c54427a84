"""One engine process of a transfer test: a plane and its memory, ordered about over a socket.

Requests and answers are JSON lines. `python -m tests.integration.transfer.peer_process FD`.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import queue
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from libs.transfer.api import KvLayout, PagePool, PlaneSettings, RoomState
from libs.transfer.plane import UcxPlane
from libs.transfer.rooms import Filled, OfferRoom
from libs.transfer.segment import Segment, SegmentError
from libs.transfer.ucx import LaneContext
from libs.transfer.wire import (
    CONTROL_MAX,
    CONTROL_TAG,
    HEADER_BYTES,
    VERSION,
    Credit,
    Hello,
    WireLayout,
    pack,
)
from proto.errors import PdbusError
from proto.kv import Lane, PeerAddress
from proto.pairs import PairProbe

FINAL = (RoomState.DONE, RoomState.FAILED)
POLL_S = 0.0002


class Process:
    """The memory, the plane and the open handles."""

    def __init__(self) -> None:
        self.handles: dict[tuple[str, int], Any] = {}
        self.reports: list[Any] = []
        self.wakes = 0
        self.woken = threading.Event()

    def start(self, **config: Any) -> dict[str, Any]:
        """Make the memory and the plane."""
        rng = np.random.default_rng(config["seed"])
        count = config["pages"]
        layout = KvLayout(
            page_bytes=tuple(config["page_bytes"]),
            row_bytes=tuple(config["row_bytes"]),
            page_tokens=config["page_tokens"],
            compat=config["compat"],
        )
        self.pages = [rng.integers(0, 256, (count, n), np.uint8) for n in layout.page_bytes]
        self.rows = [rng.integers(0, 256, (8, n), np.uint8) for n in layout.row_bytes]
        settings = dict(config["settings"])
        for name in {"lanes", "required"} & settings.keys():
            settings[name] = tuple(Lane(lane) for lane in settings[name])
        try:
            self.plane = UcxPlane(
                layout,
                PagePool(self.pages),
                PagePool(self.rows),
                PlaneSettings(**settings),
                config["incarnation"],
                wake=self._wake,
                reports=self.reports.append,
            )
        except PdbusError as error:
            return {"refused": str(error.code), "detail": error.detail}
        return {"address": base64.b64encode(msgspec.msgpack.encode(self.plane.address)).decode()}

    def fetch(self, source: str, room: int, pages: list[int], **more: Any) -> None:
        """Begin a fetch."""
        address = msgspec.msgpack.decode(base64.b64decode(source), type=PeerAddress)
        self.handles["fetch", room] = self.plane.fetch(address, room, pages, **more)

    def connect(self, source: str) -> bool:
        """Ask for a link."""
        return self.plane.connect(
            msgspec.msgpack.decode(base64.b64decode(source), type=PeerAddress)
        )

    def probe(self, source: str) -> dict[str, Any]:
        """Probe a pair and wait for the figures."""
        address = msgspec.msgpack.decode(base64.b64decode(source), type=PeerAddress)
        found: queue.Queue[PairProbe] = queue.Queue()
        self.plane.probe(address, found.put)
        return msgspec.to_builtins(found.get(timeout=20))

    def offer(self, room: int, asker: str = "") -> None:
        """Begin an offer."""
        self.handles["offer", room] = self.plane.offer(room, asker)

    def has_link(self, decode: str) -> bool:
        """Return whether a decode engine is linked."""
        return self.plane.has_link(decode)

    def push(self, room: int, **more: Any) -> None:
        """Push pages."""
        self.handles["offer", room].push(**more)

    def offer_all(self, rooms: dict[str, list[int]]) -> None:
        """Offer and push several rooms whole, one right after the other."""
        for room, pages in rooms.items():
            self.offer(int(room))
            self.push(int(room), pages=pages, first_page=0, last=True, row=0)

    def state(self, side: str, room: int) -> str:
        """Return a state's name."""
        return self.handles[side, room].state.name

    def wait(self, side: str, room: int, state: str = "", timeout: float = 20.0) -> dict[str, Any]:
        """Wait for an end, or for at least a state, and describe the handle."""
        handle = self.handles[side, room]
        least = RoomState[state] if state else RoomState.DONE
        began = time.monotonic()
        while handle.state not in FINAL and handle.state < least:
            if time.monotonic() - began > timeout:
                break
            time.sleep(POLL_S)
        failure, report = handle.failure, handle.report
        return {
            "state": handle.state.name,
            "code": str(failure.code) if failure else None,
            "detail": failure.detail if failure else None,
            "report": msgspec.to_builtins(report),
            "skip": getattr(handle, "skip_pages", 0),
            "waited": time.monotonic() - began,
        }

    def abort(self, side: str, room: int, poison: int | None = None) -> dict[str, Any]:
        """Abort, and at once write over the pages that the room used."""
        handle = self.handles[side, room]
        handle.abort("the test gives up")
        state = handle.state.name
        if poison is not None:
            for buffer in self.pages:
                buffer[:] = poison
        return {"state": state}

    def count(self, value: int) -> int:
        """Count the pages, over all buffers, that hold only this byte."""
        return sum(int(np.all(buffer == value, axis=1).sum()) for buffer in self.pages)

    def paint(self, value: int) -> None:
        """Fill all pages with one byte."""
        for buffer in self.pages:
            buffer[:] = value

    def holding(self, value: int) -> int:
        """Count the pages, over all buffers, with a whole cache line of this byte."""
        found = 0
        for buffer in self.pages:
            lines = buffer[:, : buffer.shape[1] // 64 * 64].reshape(len(buffer), -1, 64)
            found += int(np.any(np.all(lines == value, axis=2), axis=1).sum())
        return found

    def digest(self, pages: list[int], row: int | None = None) -> str:
        """Return a digest of pages in order, and of a row."""
        found = hashlib.sha256()
        for buffer in self.pages:
            found.update(np.ascontiguousarray(buffer[pages]))
        for buffer in self.rows if row is not None else ():
            found.update(np.ascontiguousarray(buffer[row]))
        return found.hexdigest()

    def corrupt(self, chunks: list[int]) -> None:
        """From now on change a bit in some of the chunks that leave, counted from here."""
        count = itertools.count()
        fill = OfferRoom.fill

        def noisy(self: OfferRoom, slab: Any, *, shared: bool = False) -> Filled | None:
            filled = fill(self, slab, shared=shared)
            if filled is not None and next(count) in chunks:
                (slab if shared else filled.message[HEADER_BYTES:])[5] ^= 1
            return filled

        OfferRoom.fill = noisy

    def scarce(self) -> None:
        """From now on get no shared memory."""

        def refuse(*_arguments: Any) -> Segment:
            raise SegmentError("No space left on device")

        Segment.make = Segment.join = refuse

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        return {**msgspec.to_builtins(self.plane.stats), "wakes": self.wakes}

    def reported(self, room: int, others: bool = False) -> list[Any]:
        """Return the reports that were handed out, once a room's is among them."""
        end = time.monotonic() + 10
        while not any(report.room == room for report in self.reports):
            if time.monotonic() > end:
                break
            time.sleep(POLL_S)
        return [
            msgspec.to_builtins(report) for report in self.reports if others or report.room == room
        ]

    def pester(self, source: str, lane: str, worker: str) -> int:
        """Send nonsense to a plane's accepting port; return how many messages."""
        address = msgspec.msgpack.decode(base64.b64decode(source), type=PeerAddress)
        rng = np.random.default_rng(0)
        hello = Hello(
            version=VERSION,
            nonce="n",
            incarnation="stranger",
            target=address.incarnation,
            lane=Lane(lane),
            worker=base64.b64decode(worker),
            host="h",
            pid=1,
            layout=WireLayout(page_bytes=(1,), row_bytes=(), page_tokens=1, compat=""),
            slab_bytes=1,
            slots=4,
        )
        messages = [
            rng.integers(0, 256, 100, np.uint8),
            np.zeros(0, np.uint8),
            np.frombuffer(pack(Credit(slots=(1,))), np.uint8).copy(),
            rng.integers(0, 256, CONTROL_MAX + 1, np.uint8),
            np.frombuffer(pack(hello), np.uint8).copy(),
        ]
        port = LaneContext(Lane(lane), None).port()
        line = port.connect(address.workers[lane], lambda: None)
        sends = [port.send(line, data, CONTROL_TAG + place) for place, data in enumerate(messages)]
        while sends:
            port.progress()
            sends = [send for send in sends if not port.done(send)]
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            port.progress()
        port.close()
        return len(messages)

    def throw(self, source: str, lane: str, frames: list[tuple[int, str]]) -> None:
        """Send frames under tags to a plane's accepting port, and wait until all have left."""
        address = msgspec.msgpack.decode(base64.b64decode(source), type=PeerAddress)
        port = LaneContext(Lane(lane), None).port()
        line = port.connect(address.workers[lane], lambda: None)
        sends = [
            port.send(line, np.frombuffer(bytearray(base64.b64decode(frame)), np.uint8), tag)
            for tag, frame in frames
        ]
        while sends:
            port.progress()
            sends = [send for send in sends if not port.done(send)]
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            port.progress()
        port.close()

    def spawn(self, count: int) -> list[int]:
        """Start programs, and fork children that end at once; return their exit codes."""
        codes: list[int] = []
        for _ in range(count):
            codes.append(subprocess.run(["true"], check=False).returncode)
            child = os.fork()
            if child == 0:
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes

    def fetch_all(self, source: str, rooms: dict[str, list[int]]) -> None:
        """Begin to fetch several rooms."""
        for room, pages in rooms.items():
            self.fetch(source, int(room), pages, row=0, tokens=len(pages))

    def wait_all(self, side: str) -> dict[str, int]:
        """Wait for the end of all rooms of a side, forget them, and count their states."""
        ends: dict[str, int] = {}
        for place in [place for place in self.handles if place[0] == side]:
            handle = self.handles.pop(place)
            end = time.monotonic() + 20
            while handle.state not in FINAL and time.monotonic() < end:
                time.sleep(POLL_S)
            ends[handle.state.name] = ends.get(handle.state.name, 0) + 1
        self.reports.clear()
        return ends

    def resources(self) -> dict[str, float]:
        """Return what this process holds."""
        status = Path("/proc/self/maps").read_text()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        facts = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        return {
            "rss": int(facts["VmRSS"].split()[0]) << 10,
            "locked": int(facts["VmLck"].split()[0]) << 10,
            "maps": status.count("\n"),
            "fds": len(list(Path("/proc/self/fd").iterdir())),
            "segments": status.count("/SYSV"),
            "threads": threading.active_count(),
            "cpu": usage.ru_utime + usage.ru_stime,
        }

    def close(self) -> None:
        """Close the plane."""
        self.plane.close()

    def _wake(self) -> None:
        self.wakes += 1
        self.woken.set()


def main() -> None:
    """Serve until the socket closes."""
    process = Process()
    stream = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
    for line in stream:
        order = json.loads(line)
        try:
            answer = {"ok": getattr(process, order.pop("do"))(**order)}
        except (ValueError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
