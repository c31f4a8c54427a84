"""The file of API keys and tenants: operators write it (`pdbus keys`), gateways read it.

No key stands in it. A key is 256 random bits, and the file holds its HMAC-SHA256 under a secret of
the file, so that neither a copy of the file nor one of a table of hashes is good for anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import tomllib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["KeyEntry", "KeyFile", "KeyFileError", "TenantRules", "key_hash", "key_id", "parse"]

_PREFIX = "sk-"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_HEX = r"^[0-9a-f]{64}$"

Name = Annotated[str, Meta(pattern=_NAME)]
Hex32 = Annotated[str, Meta(pattern=_HEX)]
AtLeastOne = Annotated[int, Meta(ge=1)]


class KeyFileError(ValueError):
    """A key file that cannot be used; the text says where and why."""


class TenantRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may use; whatever is absent is not limited."""

    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    """Prompt tokens, counted when a request is admitted."""
    streams: AtLeastOne | None = None
    """Requests at the same time."""
    priority: Annotated[int, Meta(ge=-10, le=10)] = 0
    """Who is served first where requests wait: the higher one."""
    ttft_ms: AtLeastOne | None = None
    """Aim for the time to the first token."""
    itl_ms: AtLeastOne | None = None
    """Aim for the time between two tokens."""
    models: tuple[str, ...] | None = None
    """The only models that may be asked."""
    recover: Literal["never", "greedy", "any"] | None = None
    """Whether answers go on with another decode; the gateway's own policy where absent."""


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without the key."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9]{4,32}$")]
    """The part of the key between `sk-` and the dot; it may be shown."""
    hash: Hex32
    tenant: Name
    created: str = ""


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    secret: Hex32
    """Key of all hashes here; the same in the files of all gateways of a deployment."""
    tenants: dict[Name, TenantRules] = {}
    keys: tuple[KeyEntry, ...] = ()


def key_id(key: str) -> str:
    """Return the id within a key, or an empty text if it is none of ours."""
    head, dot, secret = key.partition(".")
    known = head.startswith(_PREFIX) and dot and secret
    return head.removeprefix(_PREFIX) if known else ""


def key_hash(secret: str, key: str) -> str:
    """Return what the file holds of a key."""
    return hmac.new(bytes.fromhex(secret), key.encode(), hashlib.sha256).hexdigest()


def parse(data: bytes, name: str) -> KeyFile:
    """Return the content of a key file.

    Args:
        data: the bytes of the file.
        name: its name; one that ends in `.toml` holds TOML, every other one JSON.

    Raises:
        KeyFileError: it is neither, a field is wrong, or a key belongs to no tenant of the file.
    """
    try:
        text = data.decode("utf-8")
        plain: Any = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
        file = msgspec.convert(plain, KeyFile)
    except (ValueError, RecursionError) as error:
        raise KeyFileError(f"{name}: {error}") from error
    ids: set[str] = set()
    for entry in file.keys:
        if entry.tenant not in file.tenants:
            raise KeyFileError(f"{name}: key {entry.id}: there is no tenant {entry.tenant}")
        if entry.id in ids:
            raise KeyFileError(f"{name}: key {entry.id} stands there twice")
        ids.add(entry.id)
    return file
