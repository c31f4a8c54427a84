"""Golden JSON Schemas of all messages: `proto/schemas/<module>.<Message>.json`.

A schema that changes is a change of the wire: the contract test fails until the file is written
again on purpose.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

import proto
from ops.check.golden import settle
from ops.check.messages import message_name, messages

__all__ = ["FOLDER", "schema_files"]

FOLDER = Path(proto.__path__[0]) / "schemas"


def schema_files() -> dict[Path, str]:
    """Return the text of every schema file."""
    return {
        FOLDER / f"{message_name(kind)}.json": _text(msgspec.json.schema(kind))
        for kind in messages()
    }


def _text(schema: dict[str, object]) -> str:
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(settle(schema_files(), FOLDER))
