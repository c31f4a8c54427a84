"""Names the field at fault, whatever is wrong with a body."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import msgspec

from proto.errors import ErrorCode, PdbusError
from services.gateway.openai.fields.unknown import UnknownField

__all__ = ["invalid", "refuse", "refuse_broken", "unsupported"]

_SCAN_LIMIT = 1 << 20
"""Bytes up to which a broken body is read a second time to name a number that is none."""

_AT = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`$")
_WHOLE = frozenset({"response_format", "logit_bias", "json_schema", "chat_template_kwargs"})
"""Fields that are named as a whole, whatever in them is at fault."""
_PART = re.compile(r"^messages\[(?P<message>\d+)\]\.content\[(?P<part>\d+)\]")


def invalid(param: str, text: str) -> PdbusError:
    """Return the error for a field with a value that is not allowed."""
    return PdbusError(ErrorCode.INVALID_VALUE, f"Invalid '{param}': {text}", param=param)


def unsupported(param: str, text: str) -> PdbusError:
    """Return the error for a field that cannot have what it asks for."""
    return PdbusError(ErrorCode.UNSUPPORTED_PARAMETER, f"'{param}': {text}", param=param)


def refuse(message: str, body: bytes) -> NoReturn:
    """Raise for a body whose fields are not as expected; `message` is the decoder's.

    Raises:
        PdbusError: always.
    """
    match = _AT.match(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    part = _PART.match(path)
    if part is not None:
        _refuse_part(body, int(part["message"]), int(part["part"]))
    field = _FIELD.match(text)
    root = _root(path)
    if field is not None and root not in _WHOLE:
        param = f"{path}.{field['name']}".lstrip(".")
        if field["kind"] == "missing required":
            raise PdbusError(
                ErrorCode.INVALID_REQUEST, f"Missing parameter: '{param}'.", param=param
            )
        raise UnknownField(path, field["name"])
    plain = text.replace("`", "")
    if root in _WHOLE and (path != root or field is not None):
        raise invalid(root, f"{plain} at '{path}'.")
    if not path:
        raise PdbusError(ErrorCode.INVALID_REQUEST, f"The body is not valid: {plain}.")
    raise invalid(path, f"{plain}.")


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _refuse_part(body: bytes, message: int, part: int) -> None:
    """Name the type of a content part that is not text, wherever in the part the fault was seen."""
    try:
        found: Any = msgspec.json.decode(body)["messages"][message]["content"][part]
    except RecursionError:
        return
    kind: object = found.get("type") if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(kind, str) and kind != "text":
        raise PdbusError(
            ErrorCode.UNSUPPORTED_PARAMETER,
            f"Content parts of type '{kind[:64]}' are not supported; send text.",
            param=f"messages[{message}].content[{part}].type",
        )


def refuse_broken(message: str, body: bytes) -> NoReturn:
    """Raise for a body that is not JSON, as numbers that are none are not.

    Raises:
        PdbusError: always.
    """
    param = _non_finite(body) if len(body) <= _SCAN_LIMIT else None
    if param is not None:
        root = _root(param)
        param = root if root in _WHOLE else param
        raise invalid(param, "expected a finite number.")
    raise PdbusError(ErrorCode.INVALID_REQUEST, f"The body is not valid JSON: {message}.")


def _non_finite(body: bytes) -> str | None:
    """Return the path of the first NaN or Infinity: Python's own parser lets them through."""
    try:
        value = json.loads(body, parse_constant=lambda _: _NOT_FINITE)
    except (ValueError, RecursionError):
        return None
    return next(_paths(value, ""), None)


_NOT_FINITE = object()


def _paths(value: object, path: str) -> Iterator[str]:
    if value is _NOT_FINITE:
        yield path
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from _paths(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[object]", value)):
            yield from _paths(inner, f"{path}[{index}]")
