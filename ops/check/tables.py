"""Generated parts of READMEs, each between two marks; `.env.example`; the OpenAPI document."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from libs.fleet.announcer import pdbus_version
from ops.check.environment import env_example
from ops.check.golden import settle
from ops.check.messages import message_name, messages, summary
from ops.check.subject_map import subject_rows
from proto.errors import ERRORS

__all__ = ["table_files"]

ROOT = Path(__file__).resolve().parents[2]

FIELD_TABLES = (
    ("chat", "fields", "CHAT_FIELDS"),
    ("completions", "fields", "COMPLETION_FIELDS"),
    ("responses", "responses", "FIELDS"),
    ("tokenize", "tokenize", "TOKENIZE_FIELDS"),
    ("detokenize", "tokenize", "DETOKENIZE_FIELDS"),
)
"""Mark in the gateway's README, room below `services/gateway/openai`, and name of the table."""


def table_files() -> dict[Path, str]:
    """Return the text of every file that is generated, whole or in part."""
    proto = ROOT / "proto" / "README.md"
    libs = ROOT / "libs" / "README.md"
    gateway = ROOT / "services" / "gateway" / "README.md"
    text = _filled(proto.read_text(encoding="utf-8"), "subjects", _subjects())
    return {
        proto: _filled(_filled(text, "messages", _messages()), "errors", _errors()),
        libs: _filled(libs.read_text(encoding="utf-8"), "rooms", _rooms()),
        gateway: _gateway(gateway.read_text(encoding="utf-8")),
        ROOT / ".env.example": env_example(),
        ROOT / "services" / "gateway" / "openapi" / "openapi.json": _openapi(),
    }


def _subjects() -> str:
    rows = [(f"`{name}`", f"`{subject}`", text) for name, subject, text in subject_rows()]
    return _table(("in `subjects.py`", "subject", "meaning"), rows)


def _messages() -> str:
    rows = [
        (f"`{name}`", summary(kind), f"[schema](schemas/{name}.json)")
        for kind in messages()
        for name in (message_name(kind),)
    ]
    return _table(("message", "meaning", "shape"), rows)


def _errors() -> str:
    rows = [
        (
            f"`{spec.code}`",
            spec.stage,
            str(spec.http),
            f"`{spec.kind}`",
            "yes" if spec.retryable else "no",
            "yes" if spec.attempt_retryable else "no",
            spec.cleaner,
            spec.text,
        )
        for spec in ERRORS.values()
    ]
    head = ("code", "stage", "HTTP", "type", "retry", "second attempt", "cleaned by", "text")
    return _table(head, rows)


def _rooms() -> str:
    folders = sorted(path.parent for path in (ROOT / "libs").glob("*/__init__.py"))
    rows = [
        (
            f"[{folder.name}]({folder.name}/)",
            summary(importlib.import_module(f"libs.{folder.name}")),
        )
        for folder in folders
    ]
    return _table(("room", "what it is for"), rows)


def _gateway(text: str) -> str:
    for mark, room, name in FIELD_TABLES:
        table = getattr(importlib.import_module(f"services.gateway.openai.{room}"), name)
        text = _filled(text, mark, str(table.markdown()))
    return text


def _openapi() -> str:
    room = importlib.import_module("services.gateway.openapi")
    document = room.openapi_document(pdbus_version())
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _filled(text: str, name: str, body: str) -> str:
    begin, end = f"<!-- begin {name} (generated) -->", f"<!-- end {name} -->"
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise ValueError(inspect.cleandoc(f"the marks of {name!r} are missing in a README"))
    return f"{before}{begin}\n{body}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(settle(table_files()))
