"""Settings as they may be shown: secrets are masked."""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from msgspec import inspect as msgspec_inspect

from libs.config.fields import fields_of

__all__ = ["MASK", "Secret", "masked"]

Secret = Annotated[str, Meta(extra={"secret": True})]
"""A text that is never shown."""

MASK = "***"

_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def masked(settings: msgspec.Struct) -> dict[str, Any]:
    """Return settings as plain values, with secrets and the user part of URLs masked."""
    shown: dict[str, Any] = {}
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        if value is not None and _is_secret(field.shape):
            shown[field.name] = MASK
        else:
            shown[field.name] = _mask_urls(msgspec.to_builtins(value))
    return shown


def _is_secret(shape: msgspec_inspect.Type) -> bool:
    match shape:
        case msgspec_inspect.Metadata():
            extra = cast("dict[str, Any]", shape.extra or {})  # pyright: ignore[reportUnknownMemberType]
            return bool(extra.get("secret")) or _is_secret(shape.type)
        case msgspec_inspect.UnionType(types=types):
            return any(_is_secret(inner) for inner in types)
        case _:
            return False


def _mask_urls(value: Any) -> Any:
    match value:
        case str():
            return _USERINFO.sub(MASK, value)
        case list() | tuple():
            return [_mask_urls(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {key: _mask_urls(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
