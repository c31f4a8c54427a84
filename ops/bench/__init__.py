"""How numbers are made: parity of tokens, and the cost of the split path."""

from __future__ import annotations

__all__: list[str] = []
