"""Peers in an environment of their own, and how that environment comes to be."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from ops.bench.kv.contest import ROOT, Partner, Round, Unavailable, program
from ops.bench.kv.shapes import Cell

__all__ = ["KINDS", "Peer", "install"]

KINDS = {
    "nixl": "NIXL",
    "nixl-none": "NIXL no errors",
    "nixl-asked": "NIXL asked",
    "nixl-none-asked": "NIXL asked, no err",
    "mooncake": "Mooncake tcp",
}
"""Those that are asked do what pdbus does; the others only write."""
_HOME = ROOT / ".pdbus" / "bench"
_PYTHON = _HOME / "venv" / "bin" / "python"
_SYSTEM = _HOME / "system"
_REQUIREMENTS = ROOT / "requirements" / "bench.txt"
_MOST_PIECES = 1 << 15
_LIBRARIES = ("libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200", "libnuma1")


class Peer:
    """NIXL or Mooncake as a contestant: raw writes, without an ask and without a word at the end.

    Args:
        kind: one of `KINDS`.
        largest: the largest cell.
    """

    def __init__(self, kind: str, largest: Cell) -> None:
        self.name = KINDS[kind]
        if not _PYTHON.exists():
            raise Unavailable("not installed: run `make bench-kv` once with access to packages")
        # Twice as much, for pieces that lie apart.
        arguments = ("--kind", kind, "--largest", str(2 * largest.moved))
        folders = (_SYSTEM / "usr/lib/x86_64-linux-gnu", _SYSTEM / "lib/x86_64-linux-gnu")
        paths = [str(folder) for folder in folders if folder.exists()]
        environment = {"LD_LIBRARY_PATH": os.pathsep.join(paths), "MC_LOG_LEVEL": "ERROR"}
        self._process = Partner(
            ("ops.bench.kv.foreign", *arguments), python=str(_PYTHON), environment=environment
        )
        self._order(do="greet")

    def prepare(self, cell: Cell) -> None:
        """Describe the pieces."""
        if cell.pieces > _MOST_PIECES:
            raise Unavailable(f"{cell.pieces} pieces: it takes one descriptor each")
        piece = cell.moved // cell.pieces
        self._order(do="prepare", pieces=cell.pieces, piece=piece, apart=cell.apart)

    def run(self, cell: Cell, transfers: int) -> Round:
        """Write."""
        answer = self._order(do="move", times=transfers)
        return Round(answer["seconds"], answer["cpu_s"], cell.moved * transfers, transfers)

    def _order(self, **order: Any) -> Any:
        """Give an order; its processes run only meanwhile, or NIXL's idle ones would take cores."""
        self._process.resume()
        try:
            return self._process(**order)
        finally:
            self._process.pause()

    def close(self) -> None:
        """End its processes."""
        with suppress(Unavailable):
            self._process.resume()
        self._process.close()


def install() -> str:
    """Install the peers once; return what did not work, or nothing."""
    if _PYTHON.exists():
        return ""
    _HOME.mkdir(parents=True, exist_ok=True)
    steps = (
        [sys.executable, "-m", "venv", str(_PYTHON.parents[1])],
        [str(_PYTHON), "-m", "pip", "install", "-q", "--no-deps", "-r", str(_REQUIREMENTS)],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(step[-4:])}: {done.stderr.strip()[-200:]}"
    _system_libraries()
    return ""


def _system_libraries() -> None:
    """Unpack what Mooncake needs of the system, where packages can be had; else it says so."""
    packages = _HOME / "packages"
    packages.mkdir(exist_ok=True)
    try:
        get, unpack = program("apt-get"), program("dpkg")
    except Unavailable:
        return
    for name in _LIBRARIES:
        subprocess.run([get, "download", name], cwd=packages, capture_output=True, check=False)
    for package in packages.glob("*.deb"):
        subprocess.run([unpack, "-x", package, _SYSTEM], capture_output=True, check=False)
