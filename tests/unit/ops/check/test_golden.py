"""Generated files that are committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.check.golden import settle, stale


@pytest.fixture
def wanted(tmp_path: Path) -> dict[Path, str]:
    return {tmp_path / "a.json": "a\n", tmp_path / "b.json": "b\n"}


def test_writing_makes_everything_up_to_date(
    tmp_path: Path, wanted: dict[Path, str], monkeypatch: pytest.MonkeyPatch
):
    """After a run without `--check` all files stand, and files that nobody wants are gone."""
    (tmp_path / "old.json").write_text("old")
    monkeypatch.setattr("sys.argv", ["schemas"])
    assert settle(wanted, tmp_path) == 0
    assert stale(wanted, tmp_path) == []
    assert not (tmp_path / "old.json").exists()


def test_checking_names_what_differs_and_writes_nothing(
    tmp_path: Path,
    wanted: dict[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """With `--check` a missing, a changed and an extra file each fail, and stay as they are."""
    (tmp_path / "a.json").write_text("changed")
    (tmp_path / "old.json").write_text("old")
    monkeypatch.setattr("sys.argv", ["schemas", "--check"])
    assert settle(wanted, tmp_path) == 1
    said = capsys.readouterr().out
    for part in ("a.json: out of date", "b.json: missing", "old.json: no longer wanted"):
        assert part in said
    assert (tmp_path / "a.json").read_text() == "changed"
