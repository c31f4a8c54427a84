"""Public files that stand beside the checkout: schemas and data of others, not copied here."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["TRACES", "needed"]

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"


def needed(name: str) -> Path:
    """Return a file or folder of the public data; the test is skipped where it is absent."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the public data {name!r} is not beside this checkout")
    return path
