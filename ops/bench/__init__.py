"""How numbers are made: parity of tokens, the cost of the split path, the cost of the edge."""

from __future__ import annotations

__all__: list[str] = []
