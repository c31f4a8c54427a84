"""What the whole system costs at its edge, beside an engine that is asked directly."""

from __future__ import annotations

__all__: list[str] = []
