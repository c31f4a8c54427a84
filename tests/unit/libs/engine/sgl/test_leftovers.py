from __future__ import annotations

import socket
from pathlib import Path

import pytest

from libs.engine.sgl.leftovers import free_port, remove_dead_segments


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """Return a shared-memory folder with three segments, and a process that maps one of them."""
    shared, processes = tmp_path / "shm", tmp_path / "proc"
    (processes / "42").mkdir(parents=True)
    shared.mkdir()
    for name in ("sglang_loads_live_1.shm", "sglang_loads_dead_2.shm", "other_3.shm"):
        (shared / name).touch()
    line = f"7f00-7f10 rw-s 00000000 00:1a 9   {shared}/sglang_loads_live_1.shm\n"
    (processes / "42" / "maps").write_text(line)
    return shared, processes


def test_segments_of_dead_processes_go(machine: tuple[Path, Path]):
    """Only old segments of SGLang that nobody maps are removed."""
    shared, processes = machine
    now = (shared / "other_3.shm").stat().st_mtime + 120
    removed = remove_dead_segments(shared, processes, now)
    assert [path.name for path in removed] == ["sglang_loads_dead_2.shm"]
    assert {path.name for path in shared.iterdir()} == {"sglang_loads_live_1.shm", "other_3.shm"}


def test_young_segments_stay(machine: tuple[Path, Path]):
    """An engine that is starting may not have mapped its segment yet."""
    shared, processes = machine
    now = (shared / "other_3.shm").stat().st_mtime + 5
    assert remove_dead_segments(shared, processes, now) == []


def test_a_free_port_can_be_bound():
    """The port is one that a server can take."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
