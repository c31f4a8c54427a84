"""Files that are generated and committed: write them, or say which ones are out of date."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["settle", "stale"]


def stale(wanted: Mapping[Path, str], folder: Path | None = None) -> list[str]:
    """Return what differs from `wanted`; in `folder` no other file may stand."""
    lines = [
        f"{path}: {'out of date' if path.exists() else 'missing'}"
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if folder is not None:
        lines += [f"{path}: no longer wanted" for path in _extra(wanted, folder)]
    return lines


def settle(wanted: Mapping[Path, str], folder: Path | None = None) -> int:
    """Check if `--check` was given, else write; return the exit code."""
    if "--check" in sys.argv[1:]:
        lines = stale(wanted, folder)
        for line in lines:
            print(f"{line}; run `make generate` and look at the difference")
        return 1 if lines else 0
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in _extra(wanted, folder) if folder is not None else ():
        path.unlink()
    print(f"{len(wanted)} files written")
    return 0


def _extra(wanted: Mapping[Path, str], folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path not in wanted)
