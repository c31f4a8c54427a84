"""Tables of request fields: carried out, accepted without effect, or refused.

There is one table an endpoint. The tables of the README are generated from them. `null` means "not
given" for every field but the internal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from proto.errors import ErrorCode, PdbusError
from services.gateway.openai.fields.unknown import UnknownField

__all__ = ["Field", "FieldTable", "Stance"]

_OTHERS = "refused | 400 `unsupported_parameter` names it; `--unknown-fields ignore` leaves it out"
_NULL = b"null"


class Stance(StrEnum):
    """What becomes of a field."""

    DONE = "implemented"
    NO_EFFECT = "accepted"
    REFUSED = "refused"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Field:
    """One row."""

    name: str
    stance: Stance
    note: str = ""
    values: tuple[object, ...] = ()
    """Values that are accepted because they ask for nothing."""
    kind: Any = None
    """Or the type of all accepted values."""

    def accepts(self, raw: msgspec.Raw) -> bool:
        """Return whether a field that is not carried out may have this JSON value."""
        if self.kind is not None:
            try:
                msgspec.json.decode(raw, type=self.kind)
            except msgspec.ValidationError:
                return False
            return True
        value = msgspec.json.decode(raw)
        return any(value == known and type(value) is type(known) for known in self.values)


class FieldTable:
    """The rows of one endpoint. A field that has no row is unknown: `UnknownField` tells of it."""

    def __init__(self, *rows: Iterable[Field]) -> None:
        self.rows: Mapping[str, Field] = {row.name: row for group in rows for row in group}

    def names(self, stance: Stance) -> frozenset[str]:
        """Return the names of all rows of a stance."""
        return frozenset(row.name for row in self.rows.values() if row.stance is stance)

    def check(self, fields: Mapping[str, msgspec.Raw]) -> None:
        """Refuse a request that asks for something that would not happen.

        Raises:
            PdbusError: `unsupported_parameter`, naming the first such field.
        """
        for name, raw in fields.items():
            row = self.rows.get(name)
            if row is not None and row.stance is Stance.DONE:
                continue
            if row is None:
                raise UnknownField("", name)
            if row.stance is Stance.INTERNAL:
                raise _unsupported(name, "This parameter is internal and cannot be set")
            if bytes(raw) == _NULL or row.accepts(raw):
                continue
            text = "Unsupported parameter"
            if row.stance is Stance.NO_EFFECT:
                text = f"Unsupported value (accepted: {row.note})"
            raise _unsupported(name, text)

    def markdown(self) -> str:
        """Return the table for the README."""
        lines = ["| field | stance | notes |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.stance} | {row.note} |" for row in self.rows.values()]
        lines.append(f"| any other | {_OTHERS} |")
        return "\n".join(lines)


def _unsupported(name: str, text: str) -> PdbusError:
    return PdbusError(ErrorCode.UNSUPPORTED_PARAMETER, f"{text}: '{name}'.", param=name)
