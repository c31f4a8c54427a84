"""NIXL and Mooncake, in processes of their own environment: `python -m ops.bench.kv.foreign`.

The measured process writes into memory that its child has registered. It answers orders on `--fd`.
Nobody asks for the bytes and nobody is told that they are there, which favours these peers; only in
the kinds that end in `asked` the child asks with a notification and waits for another.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

_WAIT_S = 60.0
_KINDS = ("nixl", "nixl-none", "nixl-asked", "nixl-none-asked", "mooncake")
_BATCH = 512
"""Mooncake fails with many more pieces at once."""


def main() -> None:
    """Serve until the line closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=_KINDS, required=True)
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args()
    stream = socket.socket(fileno=given.fd).makefile("rw")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    target = context.Process(target=_target, args=(given.kind, given.largest, theirs), daemon=True)
    target.start()
    try:
        pair: Any = _make(given.kind, given.largest, ours)
        problem = ""
    except (ImportError, OSError, RuntimeError, TypeError) as error:
        pair, problem = None, f"{type(error).__name__}: {error}"
    for line in stream:
        answer: Any = {"problem": problem}
        if pair is not None:
            answer = _obey(pair, json.loads(line), target.pid or 0)
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
    target.kill()


def _obey(pair: Any, order: dict[str, Any], child: int) -> Any:
    try:
        if order["do"] == "greet":
            return None
        if order["do"] == "prepare":
            pair.prepare(order["pieces"], order["piece"], apart=order["apart"])
            return None
        used = _cpu(os.getpid()) + _cpu(child)
        seconds = pair.run(order["times"])
        return {"seconds": seconds, "cpu_s": _cpu(os.getpid()) + _cpu(child) - used}
    except (RuntimeError, OSError, TypeError) as error:
        return {"problem": f"{type(error).__name__}: {error}"}


def _offsets(pieces: int, piece: int, *, apart: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where the pieces are on both sides; those that lie apart have gaps between them."""
    if not apart:
        together = np.arange(pieces) * piece
        return together, together
    here, there = (2 * np.random.default_rng(seed).permutation(pieces) for seed in (0, 1))
    return here * piece, there * piece


def _make(kind: str, largest: int, line: Any) -> Any:
    if not line.poll(_WAIT_S):
        raise RuntimeError("its other process did not start")
    facts = line.recv_bytes()
    if facts.startswith(b"!"):
        raise RuntimeError(facts[1:].decode())
    if kind == "mooncake":
        return Mooncake(largest, facts)
    return Nixl(kind, largest, facts, line)


def _agent(name: str, kind: str) -> Any:
    api: Any = import_module("nixl._api")
    if not kind.startswith("nixl-none"):
        return api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
    agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
    return agent


class Nixl:
    """Writes through NIXL's UCX backend, one descriptor a piece."""

    def __init__(self, kind: str, largest: int, facts: bytes, line: Any) -> None:
        self._line = line if kind.endswith("asked") else None
        base, _, metadata = facts.partition(b"\n")
        self._base = int(base)
        self._agent = _agent("prefill", kind)
        self._peer = self._agent.add_remote_agent(metadata)
        self._memory = np.ones(largest, np.uint8)
        self._agent.register_memory([(self._memory.ctypes.data, largest, 0, "")], "DRAM")
        self._handle: Any = None
        if self._line is not None:
            self._line.send_bytes(self._agent.get_agent_metadata())

    def prepare(self, pieces: int, piece: int, *, apart: bool) -> None:
        """Describe both sides."""
        if self._handle is not None:
            self._agent.release_xfer_handle(self._handle)
        here, there = _offsets(pieces, piece, apart=apart)
        mine = self._describe(self._memory.ctypes.data, here, piece)
        theirs = self._describe(self._base, there, piece)
        self._handle = self._agent.initialize_xfer("WRITE", mine, theirs, self._peer)
        self.move()

    def _describe(self, base: int, offsets: Any, piece: int) -> Any:
        runs = [(base + int(at), piece, 0) for at in offsets]
        return self._agent.get_xfer_descs(runs, "DRAM")

    def run(self, times: int) -> float:
        """Write so many times; return the seconds that it took the side that measures."""
        if self._line is None:
            return _timed(self.move, times)
        self._line.send_bytes(str(times).encode())
        for _ in range(times):
            _notified(self._agent)
            self.move(b"done")
        if not self._line.poll(_WAIT_S):
            raise RuntimeError("the other process was not told")
        return float(self._line.recv_bytes())

    def move(self, word: bytes = b"") -> None:
        """Write all pieces; `word` tells the other side."""
        state = self._agent.transfer(self._handle, word)
        end = time.monotonic() + _WAIT_S
        while state != "DONE":
            if state == "ERR" or time.monotonic() > end:
                raise RuntimeError(f"the transfer is {state}")
            state = self._agent.check_xfer_state(self._handle)


class Mooncake:
    """Writes through Mooncake's tcp transport."""

    def __init__(self, largest: int, facts: bytes) -> None:
        base, _, name = facts.partition(b"\n")
        self._base, self._peer = int(base), name.decode()
        self._engine = _engine()
        self._memory = np.ones(largest, np.uint8)
        if self._engine.register_memory(self._memory.ctypes.data, largest):
            raise RuntimeError("memory was not registered")
        self._runs: tuple[list[int], list[int], list[int]] = ([], [], [])

    def prepare(self, pieces: int, piece: int, *, apart: bool) -> None:
        """Describe both sides."""
        here, there = _offsets(pieces, piece, apart=apart)
        mine = self._memory.ctypes.data
        self._runs = (
            [mine + int(at) for at in here],
            [self._base + int(at) for at in there],
            [piece] * pieces,
        )
        self.move()

    def run(self, times: int) -> float:
        """Write so many times; return the seconds."""
        return _timed(self.move, times)

    def move(self) -> None:
        """Write all pieces."""
        for at in range(0, len(self._runs[0]), _BATCH):
            some = (side[at : at + _BATCH] for side in self._runs)
            if self._engine.batch_transfer_sync_write(self._peer, *some) < 0:
                raise RuntimeError("the transfer failed")


def _engine() -> Any:
    engine = import_module("mooncake.engine").TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise RuntimeError("the engine did not start")
    return engine


def _target(kind: str, largest: int, line: Any) -> None:
    """Register memory, say where it is, and wait for the end."""
    memory = np.zeros(largest, np.uint8)
    try:
        if kind == "mooncake":
            engine: Any = _engine()
            engine.register_memory(memory.ctypes.data, largest)
            facts = f"127.0.0.1:{engine.get_rpc_port()}".encode()
        else:
            engine = _agent("decode", kind)
            engine.register_memory([(memory.ctypes.data, largest, 0, "")], "DRAM")
            facts = engine.get_agent_metadata()
    except (ImportError, OSError, RuntimeError, TypeError) as error:
        line.send_bytes(f"!{type(error).__name__}: {error}".encode())
        return
    line.send_bytes(f"{memory.ctypes.data}\n".encode() + facts)
    if not kind.endswith("asked"):
        time.sleep(1 << 20)
    peer = engine.add_remote_agent(line.recv_bytes())
    while True:
        times = int(line.recv_bytes())
        line.send_bytes(str(_timed(lambda: _ask(engine, peer), times)).encode())


def _ask(agent: Any, peer: Any) -> None:
    agent.send_notif(peer, b"ask")
    _notified(agent)


def _notified(agent: Any) -> None:
    """Spin until there is a notification, as NIXL's users do."""
    end = time.monotonic() + _WAIT_S
    while not any(agent.get_new_notifs().values()):
        if time.monotonic() > end:
            raise RuntimeError("no notification came")


def _timed(move: Any, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        move()
    return time.perf_counter() - began


def _cpu(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
