"""The tree holds nothing of the machine on which it was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Joined here, so that this file does not contain what it looks for.
FORBIDDEN = tuple("/" + word + "/" for word in ("work", "root", "home", "opt"))
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".json", ".conf", ""}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def test_no_file_names_a_place_of_one_machine():
    """Paths of a developer's machine would be wrong on every other one."""
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        if path.is_file() and path.suffix in TEXT and path.name != "LICENSE"
        for word in FORBIDDEN
        if word in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []
