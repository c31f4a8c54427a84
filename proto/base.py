"""The base of all messages, and the typed codec that every edge uses exactly once."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

__all__ = ["Message", "ProtocolError", "decode", "encode", "to_json"]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """A frozen value that travels between processes, tagged with its class name.

    Unknown fields are ignored, so a newer sender can talk to an older receiver. Missing fields,
    wrong types and unknown tags are refused by `decode`.
    """


class ProtocolError(ValueError):
    """Bytes that are not the message they should be; the text carries the path of the fault."""


MessageT = TypeVar("MessageT")

_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def encode(message: Message) -> bytes:
    """Return the msgpack bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview, kind: type[MessageT]) -> MessageT:
    """Return the message in `data`; `kind` is a message class or a union of them.

    Raises:
        ProtocolError: the bytes are not valid msgpack or not such a message.
    """
    try:
        return _decoder(kind).decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)) from error


def to_json(message: Message) -> bytes:
    """Return a message as JSON, for people and for golden files."""
    return msgspec.json.encode(message)
