"""From bytes to a valid chat request, or to an error that names the field at fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import msgspec

from proto.errors import ErrorCode, PdbusError
from proto.openai.chat import ChatRequest, Message
from services.gateway.openai.fields import CHAT_FIELDS, Stance, check_fields

__all__ = ["decode_chat", "stops_of"]

_TOO_DEEP = "The body is nested too deeply."
_SCAN_LIMIT = 1 << 20
"""Bytes up to which a broken body is read a second time to name a number that is none."""

_AT = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`$")
_PART = re.compile(r"^messages\[(?P<message>\d+)\]\.content\[(?P<part>\d+)\]")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_request = msgspec.json.Decoder(ChatRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """Return the request in a body.

    Raises:
        PdbusError: not JSON, unknown or unsupported fields, wrong types or values.
    """
    try:
        fields = _fields.decode(body)
        check_fields(fields)
        request = _request.decode(_carried_out(fields, body))
    except RecursionError as error:
        raise PdbusError(ErrorCode.INVALID_REQUEST, _TOO_DEEP) from error
    except msgspec.ValidationError as error:
        _refuse(str(error), body)
    except msgspec.DecodeError as error:
        _refuse_broken(str(error), body)
    _check(request)
    return request


def stops_of(request: ChatRequest) -> tuple[str, ...]:
    """Return the stop strings, whichever way they were given."""
    if request.stop is None:
        return ()
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def _carried_out(fields: dict[str, msgspec.Raw], body: bytes) -> bytes:
    """Return the body without the fields that were accepted to have no effect."""
    done = {name: raw for name, raw in fields.items() if CHAT_FIELDS[name].stance is Stance.DONE}
    return body if len(done) == len(fields) else msgspec.json.encode(done)


def _refuse(message: str, body: bytes) -> NoReturn:
    match = _AT.match(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    part = _PART.match(path)
    if part is not None:
        _refuse_part(body, int(part["message"]), int(part["part"]))
    field = _FIELD.match(text)
    if field is not None:
        param = f"{path}.{field['name']}".lstrip(".")
        if field["kind"] == "missing required":
            raise PdbusError(
                ErrorCode.INVALID_REQUEST, f"Missing parameter: '{param}'.", param=param
            )
        raise PdbusError(
            ErrorCode.UNSUPPORTED_PARAMETER, f"Unknown parameter: '{param}'.", param=param
        )
    plain = text.replace("`", "")
    if not path:
        raise PdbusError(ErrorCode.INVALID_REQUEST, f"The body is not valid: {plain}.")
    raise PdbusError(ErrorCode.INVALID_VALUE, f"Invalid '{path}': {plain}.", param=path)


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


def _refuse_broken(message: str, body: bytes) -> NoReturn:
    param = _non_finite(body) if len(body) <= _SCAN_LIMIT else None
    if param is not None:
        raise PdbusError(
            ErrorCode.INVALID_VALUE, f"Invalid '{param}': expected a finite number.", param=param
        )
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


def _check(request: ChatRequest) -> None:
    if request.n not in {None, 1}:
        raise _unsupported("n", "Only one answer a request is supported.")
    if request.top_k == 0:
        raise _invalid("top_k", "-1 or at least 1 is expected.")
    options = request.stream_options
    if options is not None:
        if not request.stream:
            raise _invalid("stream_options", "It is only allowed with 'stream'.")
        if options.include_obfuscation:
            raise _unsupported("stream_options.include_obfuscation", "It is not supported.")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, path: str) -> None:
    if message.tool_calls:
        raise _unsupported(f"{path}.tool_calls", "Tool calls are not supported.")
    if message.annotations:
        raise _unsupported(f"{path}.annotations", "Annotations are not supported.")
    if message.content is None:
        raise _invalid(f"{path}.content", "Text is expected.")
    if message.role == "tool" and message.tool_call_id is None:
        raise _invalid(f"{path}.tool_call_id", "It is needed with this role.")


def _invalid(param: str, text: str) -> PdbusError:
    return PdbusError(ErrorCode.INVALID_VALUE, f"Invalid '{param}': {text}", param=param)


def _unsupported(param: str, text: str) -> PdbusError:
    return PdbusError(ErrorCode.UNSUPPORTED_PARAMETER, f"'{param}': {text}", param=param)
