"""Failures that only the logs tell of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["tracebacks"]


def tracebacks(folder: Path) -> list[str]:
    """Return each kind of logged exception once, with how often it came."""
    found: dict[str, int] = {}
    for log in sorted(folder.glob("*.log")):
        with log.open(errors="replace") as lines:
            for line in lines:
                if '"exception"' in line and (text := _kind(line)):
                    name = f"{log.stem}: {text}"
                    found[name] = found.get(name, 0) + 1
    return [f"{name} ({count} times)" for name, count in found.items()]


def _kind(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    chain = entry.get("exception")
    if not isinstance(chain, list) or not chain:
        return None
    return f"{str(entry.get('event', '')).strip()}: {_innermost(chain[0])}"


def _innermost(error: dict[str, Any]) -> str:
    inner = error.get("exceptions") or []
    if inner:
        first = inner[0]
        return _innermost(first[0] if isinstance(first, list) else first)
    frames = error.get("frames") or [{}]
    last = frames[-1]
    where = f"{Path(str(last.get('filename', ''))).name}:{last.get('lineno')}"
    return f"{error.get('exc_type')}({error.get('exc_value')}) at {where}"
