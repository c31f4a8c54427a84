"""Beside the contest: idle cost, what compute hides, and TCP between two network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median

from ops.bench.kv.contest import ROOT, Contestant, Score, Unavailable, program
from ops.bench.kv.floor import Tcp
from ops.bench.kv.hops import Hops
from ops.bench.kv.ours import Ours
from ops.bench.kv.pieces.copies import Copies
from ops.bench.kv.serve import CHUNK_BYTES
from ops.bench.kv.shapes import LAYOUTS, Cell
from ops.bench.kv.table import verdict
from proto.kv import Lane

__all__ = ["measure_idle", "measure_overlap", "measure_parted", "parted"]

_IDLE_GOAL = 0.02
_TCP_GOAL = 0.9
_CHUNK_TOKENS = 512
_CHUNK_S = 0.01
"""What an accelerator takes for such a chunk of a small model."""
_PROMPTS = (512, 1024, 2048, 4096, 8192)
_TRIES = 3
_ROUNDS = 5
_NAMES = ("pdbus-bench-a", "pdbus-bench-b")
_DEVICES = ("pdbk0", "pdbk0p")
_HOSTS = ("10.231.77.1", "10.231.77.2")
_PARTED_SIZES = (1 << 20, 16 << 20, 64 << 20)


def measure_idle() -> None:
    """Print the cores of a linked pair with nothing to do.

    Raises:
        Unavailable: the pair cannot be made.
    """
    cell = Cell(LAYOUTS["smollm2"], 16, 1 << 20, apart=False)
    ours = Ours(Lane.CMA, cell)
    try:
        ours.prepare(cell)
        print(f"\nidle: {verdict(ours.idle(), _IDLE_GOAL, most=True)} core an engine")
    finally:
        ours.close()


def measure_overlap() -> None:
    """Print how much of a transfer is over before the prompt is computed.

    Raises:
        Unavailable: a transfer failed.
    """
    print(
        f"\noverlap: 8b layout, chunks of {_CHUNK_TOKENS} tokens, {_CHUNK_S * 1e3:.0f} ms each;"
        " medians"
    )
    layout = LAYOUTS["8b"]
    per_token = layout.buffers * layout.token_bytes
    largest = Cell(layout, 16, _PROMPTS[-1] * per_token, apart=True)
    for lane in (Lane.CMA, Lane.SYSV):
        ours = Ours(lane, largest)
        try:
            for tokens in _PROMPTS:
                cell = Cell(layout, 16, tokens * per_token, apart=True)
                pages = _CHUNK_TOKENS // cell.page_tokens
                ours.prepare(cell)
                alone = median(ours.run(cell, 1).seconds for _ in range(_TRIES))
                tails = [ours.overlapped(cell, pages, _CHUNK_S)[1] for _ in range(_TRIES)]
                tail = median(tails)
                hidden = max(0.0, 1 - tail / alone)
                print(
                    f"  {lane:5} {tokens:5} tokens: {cell.moved / 1e6:6.0f} MB,"
                    f" alone {alone * 1e3:6.1f} ms, after the last chunk {tail * 1e3:6.1f} ms,"
                    f" hidden {hidden:4.0%}"
                )
        finally:
            ours.close()


def measure_parted() -> None:
    """Print the TCP lane beside a plain socket, between two network namespaces of our own.

    Raises:
        Unavailable: namespaces cannot be made here, or something failed in them.
    """
    with _namespaces():
        done = subprocess.run(
            [*_within(_NAMES[0]), sys.executable, "-m", "ops.bench.kv.parted"],
            cwd=ROOT,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        raise Unavailable(done.stderr.strip()[-300:])
    print(done.stdout, end="")


def parted() -> None:
    """Measure from within the first namespace."""
    before = _within(_NAMES[1])
    layout = LAYOUTS["8b"]
    largest = Cell(layout, 16, _PARTED_SIZES[-1], apart=False)
    print("\ntcp between two network namespaces")
    present: tuple[Contestant, ...] = (
        ours := Ours(Lane.TCP, largest, before=before, interface=_DEVICES[0]),
        plain := Tcp(_HOSTS[1], before=before),
        hops := Hops(),
        copies := Copies(),
    )
    try:
        for size in _PARTED_SIZES:
            cell = Cell(layout, 16, size, apart=False)
            scores = {contestant.name: Score() for contestant in present}
            for contestant in present:
                contestant.prepare(cell)
            for _ in range(_ROUNDS):
                for contestant in present:
                    one = contestant.run(cell, max(2, (128 << 20) // size))
                    scores[contestant.name].rounds.append(one)
            mine, theirs = scores[ours.name], scores[plain.name]
            most = _most(cell, theirs, scores[hops.name], scores[copies.name])
            ratio = verdict(mine.gbps / theirs.gbps, _TCP_GOAL)
            print(
                f"  {size >> 20:3} MiB: pdbus {mine.gbps:5.2f} GB/s, plain socket"
                f" {theirs.gbps:5.2f} GB/s, ratio {ratio}, at most {most:4.2f};"
                f" CPU s/GB {mine.cpu_per_gb:4.2f} and {theirs.cpu_per_gb:4.2f}"
            )
    finally:
        for contestant in present:
            contestant.close()


def _most(cell: Cell, plain: Score, hops: Score, copies: Score) -> float:
    """Return the ratio to the socket if all but wakeups and one chunk's copies went on beside it.

    A chunk leaves when it is gathered, and is scattered when it has arrived whole.
    """
    chunk = min(1.0, CHUNK_BYTES / cell.moved)
    return plain.microseconds / (
        plain.microseconds + hops.microseconds + 2 * chunk * copies.microseconds
    )


@contextmanager
def _namespaces() -> Generator[None]:
    """Make two network namespaces with a cable between them; remove them afterwards."""
    _remove_namespaces()
    try:
        for name in _NAMES:
            _ip("netns", "add", name)
        _ip("link", "add", _DEVICES[0], "type", "veth", "peer", "name", _DEVICES[1])
        for name, device, host in zip(_NAMES, _DEVICES, _HOSTS, strict=True):
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", device)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        _remove_namespaces()


def _remove_namespaces() -> None:
    """Remove them, also those that a killed run has left."""
    for name in _NAMES:
        subprocess.run([program("ip"), "netns", "del", name], capture_output=True, check=False)


def _within(namespace: str) -> tuple[str, ...]:
    return (program("ip"), "netns", "exec", namespace)


def _ip(*words: str) -> None:
    done = subprocess.run([program("ip"), *words], capture_output=True, check=False, text=True)
    if done.returncode:
        raise Unavailable(f"ip {' '.join(words)}: {done.stderr.strip()}")
