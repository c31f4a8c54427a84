"""Fields that nobody knows: refused by name, or left out and counted where the operator says so."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from proto.errors import ErrorCode, PdbusError

__all__ = ["UnknownField", "without"]

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_SHOWN = 128
"""Characters of an unknown name that are given back."""


class UnknownField(PdbusError):
    """A field that no table and no type has.

    Args:
        place: where it stands, as decoders write it; empty for the body itself.
        name: the field.
    """

    def __init__(self, place: str, name: str) -> None:
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
        param = f"{place}.{shown}" if place else shown
        text = f"Unknown parameter: '{param}'."
        super().__init__(ErrorCode.UNSUPPORTED_PARAMETER, text, param=param)
        self.place = place
        self.name = name


def without(body: bytes, unknown: UnknownField) -> bytes:
    """Return a body without a field that was found in it.

    Raises:
        UnknownField: it is not where it was found to be.
    """
    whole: object = msgspec.json.decode(body)
    found: Any = whole
    for index, name in _STEP.findall(unknown.place):
        found = _step(found, int(index) if index else name)
    if not isinstance(found, dict) or unknown.name not in found:
        raise unknown
    del found[unknown.name]
    return msgspec.json.encode(whole)


def _step(value: object, key: str | int) -> object:
    if isinstance(value, list) and isinstance(key, int):
        items = cast("list[object]", value)
        return items[key] if key < len(items) else None
    return cast("dict[object, object]", value).get(key) if isinstance(value, dict) else None
