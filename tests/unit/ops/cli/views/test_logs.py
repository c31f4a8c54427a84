"""The last lines of the logs of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.cli.errors import CommandError
from ops.cli.views.logs import last_lines


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder with the logs of three processes."""
    for name in ("decode-0", "decode-1", "router-0"):
        (tmp_path / f"{name}.log").write_text("".join(f"{name} {n}\n" for n in range(5)))
    return tmp_path


def test_one_process_a_role_or_all(logs: Path) -> None:
    """A process, a role, or nothing chooses whose lines are shown."""
    assert last_lines(logs, "decode-1", 1) == ["decode-1: decode-1 4"]
    assert len(last_lines(logs, "decode", 2)) == 4
    assert len(last_lines(logs, None, 2)) == 6


def test_unknown_names_are_told(logs: Path) -> None:
    """A wrong name fails with the names that there are."""
    with pytest.raises(CommandError, match="router-0"):
        last_lines(logs, "gateway", 1)
