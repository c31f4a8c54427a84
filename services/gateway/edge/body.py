"""The body of a request: JSON only, bounded in size, in depth and in time."""

from __future__ import annotations

import asyncio
import re
from itertools import accumulate

from starlette.types import Receive, Scope

from proto.errors import ErrorCode, PdbusError
from services.gateway.edge.connection import BODY
from services.gateway.edge.exchange import header
from services.gateway.edge.presence import ClientGone

__all__ = ["MOST_DEPTH", "depth_of", "read_body"]

MOST_DEPTH = 64
"""Levels of lists and objects within each other."""
_JSON = "application/json"
_INLINE_BYTES = 65_536
"""Larger bodies are looked through on a thread, so that they do not hold up streams."""
_STRING = re.compile(rb'"(?:[^"\\]+|\\.?)*+(?:"|\Z)', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"
_OTHERS = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)
_STEP = [1 if byte in _OPENING else -1 for byte in range(256)]


async def read_body(scope: Scope, receive: Receive, *, limit: int, timeout_s: float) -> bytes:
    """Return the body of a request that says it is JSON.

    Args:
        limit: most bytes.
        timeout_s: most time until the last byte.

    Raises:
        PdbusError: wrong media type, too large, too deep, too slow.
        ClientGone: the client left before it had sent all.
    """
    _check_media_type(scope)
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    arrived = scope.get(BODY)
    if arrived is not None and arrived.asked_whole:
        body = await _read(receive, limit)
    else:
        body = await _read_in_time(receive, limit, timeout_s)
    inline = len(body) <= _INLINE_BYTES
    depth = depth_of(body) if inline else await asyncio.to_thread(depth_of, body)
    if depth > MOST_DEPTH:
        text = f"The body is nested deeper than {MOST_DEPTH} levels."
        raise PdbusError(ErrorCode.INVALID_REQUEST, text)
    return body


def depth_of(body: bytes) -> int:
    """Return how deep JSON is nested, at most, without parsing it; any bytes have an answer.

    Up to the limit it may be too high, as brackets in strings are then counted as well.
    """
    brackets = body.count(b"[") + body.count(b"{")
    if brackets <= MOST_DEPTH:
        return brackets
    bare = _STRING.sub(b"", body).translate(None, _OTHERS)
    return max(accumulate(map(_STEP.__getitem__, bare), initial=0))


async def _read_in_time(receive: Receive, limit: int, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, limit)
    except TimeoutError as error:
        raise PdbusError(
            ErrorCode.BODY_TIMEOUT, f"The body did not arrive within {timeout_s:g} s."
        ) from error


async def _read(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("client_gone")
        piece: bytes = message.get("body", b"")
        length += len(piece)
        if length > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _check_media_type(scope: Scope) -> None:
    told = header(scope, b"content-type") or ""
    if told != _JSON:
        _check_kind(told)
    if (header(scope, b"content-encoding") or "identity").lower() != "identity":
        raise PdbusError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "Compressed request bodies are not supported."
        )


def _check_kind(told: str) -> None:
    kind, _, parameters = told.partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != _JSON or charset not in {"", "utf-8", "utf8"}:
        raise PdbusError(ErrorCode.UNSUPPORTED_MEDIA_TYPE)


def _too_large(limit: int) -> PdbusError:
    return PdbusError(ErrorCode.REQUEST_TOO_LARGE, f"The body is larger than {limit} bytes.")
