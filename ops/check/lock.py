"""Compiles `requirements/*.txt` from `pyproject.toml`: versions only, no index addresses.

Pins that stand already are kept where they still fit; delete a line to let it move.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]

HEAD = (
    "# Compiled from pyproject.toml by `make lock`: versions only, no index addresses.\n"
    "# Install with --no-deps: the list is complete.\n"
)

EXTRAS = {
    "control": ("control",),
    "worker": ("worker",),
    "dev": ("worker", "dev"),
}


def main() -> int:
    """Write the files; return the exit code."""
    for name, extras in EXTRAS.items():
        path = ROOT / "requirements" / f"{name}.txt"
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"),
            *(word for extra in extras for word in ("--extra", extra)),
            *("--universal", "--python-version", "3.11", "--quiet"),
            *("--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links"),
            *("--output-file", str(path)),
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        pins = path.read_text(encoding="utf-8")
        path.write_text(HEAD + pins, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(pins.splitlines())} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
