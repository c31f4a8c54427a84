from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from libs.models.api import ModelUnavailableError
from libs.models.prepare import build_once, run_child


def _quiet(_text: str) -> None:
    pass


def test_two_askers_build_once(tmp_path: Path):
    """The second waits for the first and finds the complete folder."""
    target, built, found = tmp_path / "m", [], []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "one").write_text("1")
        time.sleep(0.1)
        (folder / "two").write_text("2")

    def ask() -> None:
        folder = build_once(target, build, _quiet)
        found.append(sorted(file.name for file in folder.iterdir()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert found == [["one", "two"]] * 3


def test_a_failed_build_leaves_nothing(tmp_path: Path):
    """No folder appears under the final name, and the next asker builds."""

    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ModelUnavailableError("no")

    with pytest.raises(ModelUnavailableError):
        build_once(tmp_path / "m", fail, _quiet)
    assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]
    assert build_once(tmp_path / "m", lambda _folder: None, _quiet).is_dir()


def test_a_crash_leftover_is_removed(tmp_path: Path):
    """A half-made folder of a killed process does not stay for ever."""
    (tmp_path / ".m.building-dead").mkdir()
    build_once(tmp_path / "m", lambda _folder: None, _quiet)
    assert not (tmp_path / ".m.building-dead").exists()


def test_a_failed_child_tells_its_last_words(tmp_path: Path):
    """The error carries what the child wrote before it died."""
    with pytest.raises(ModelUnavailableError, match="No such file"):
        run_child(
            "libs.models.convert", str(tmp_path / "none.gguf"), str(tmp_path), progress=_quiet
        )
