"""What a settings Struct says about its fields, in the words of flags and variables."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import inspect as msgspec_inspect

__all__ = ["Field", "env_name", "fields_of"]


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    name: str
    kind: Any
    """Its annotation."""
    shape: msgspec_inspect.Type
    required: bool
    default: Any
    text: str
    """Its meaning, from the docstring below it."""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_bool(self) -> bool:
        """Whether the flag needs no value."""
        return isinstance(self.shape, msgspec_inspect.BoolType)

    @property
    def default_text(self) -> str:
        """The default as one would write it in a variable; empty for required and for None."""
        if self.required or self.default is None:
            return ""
        return to_text(self.default)

    def parse(self, text: str) -> object:
        """Return the plain value that a flag or variable means; `msgspec.convert` types it."""
        if self._is_list:
            bare = text.strip()
            return json.loads(bare) if bare.startswith("[") else _split(bare)
        if self._is_table:
            return json.loads(text)
        return text

    @property
    def _is_list(self) -> bool:
        lists = (
            msgspec_inspect.ListType,
            msgspec_inspect.VarTupleType,
            msgspec_inspect.TupleType,
            msgspec_inspect.SetType,
            msgspec_inspect.FrozenSetType,
        )
        return any(isinstance(shape, lists) for shape in _options(self.shape))

    @property
    def _is_table(self) -> bool:
        tables = (msgspec_inspect.DictType, msgspec_inspect.StructType)
        return any(isinstance(shape, tables) for shape in _options(self.shape))


def fields_of(kind: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the settings of a Struct, in their order."""
    info = msgspec_inspect.type_info(kind)
    if not isinstance(info, msgspec_inspect.StructType):
        raise TypeError(f"{kind!r} is not a Struct")
    shapes = {field.name: field.type for field in info.fields}
    texts = _docstrings(kind)
    fields: list[Field] = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        fields.append(
            Field(
                name=field.name,
                kind=field.type,
                shape=shapes[field.name],
                required=field.required,
                default=None if default is msgspec.NODEFAULT else default,
                text=texts.get(field.name, ""),
            )
        )
    return tuple(fields)


def env_name(service: str, name: str) -> str:
    """Return the environment variable of one setting of a service."""
    return f"PDBUS_{service}_{name}".replace("-", "_").upper()


def to_text(value: object) -> str:
    """Return a plain value as one would write it in a variable."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (list, tuple)):
        return ",".join(str(item) for item in plain)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return json.dumps(plain) if isinstance(plain, dict) else str(plain)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _options(shape: msgspec_inspect.Type) -> tuple[msgspec_inspect.Type, ...]:
    return shape.types if isinstance(shape, msgspec_inspect.UnionType) else (shape,)


def _docstrings(kind: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if issubclass(owner, msgspec.Struct) and owner is not msgspec.Struct:
            texts.update(_docstrings_of(owner))
    return texts


def _docstrings_of(owner: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    texts: dict[str, str] = {}
    for before, after in pairwise(body):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
            case _:
                pass
    return texts
