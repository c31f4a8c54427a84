"""Identity of a model by content, so that two engines can prove that they run the same one.

Weights up to `FULL_HASH_BYTES` are hashed byte by byte (`sha256:`). Larger ones are identified by
names, sizes and safetensors headers (`headers:`): that finds a different model, shape or dtype,
but not a different fine-tune saved with the same shapes.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from libs.text import TOKENIZER_FILES, tokenizer_digest

__all__ = ["FULL_HASH_BYTES", "Hashes", "hash_folder"]

FULL_HASH_BYTES = 4 << 30
_CHUNK = 1 << 20
_DIGITS = 32


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Hashes(NamedTuple):
    """What identifies a folder."""

    revision: str
    tokenizer: str


def hash_folder(folder: Path) -> Hashes:
    """Return the hashes of a folder, kept beside it until one of its files changes."""
    cache = folder.with_name(f".{folder.name}.hashes.json")
    stamp = _stamp(folder)
    known = _read_cache(cache, stamp)
    if known is not None:
        return known
    hashes = Hashes(_revision(folder), tokenizer_digest(folder))
    # A folder of someone else may stand where we cannot write: then it is hashed each time.
    with suppress(PermissionError):
        _write_cache(cache, stamp, hashes)
    return hashes


def _weights(folder: Path) -> list[Path]:
    return sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.gguf")))


def _stamp(folder: Path) -> str:
    names = (*_weights(folder), folder / "config.json", *(folder / n for n in TOKENIZER_FILES))
    facts = [
        (file.name, info.st_size, info.st_mtime_ns)
        for file in names
        if file.is_file()
        for info in (file.stat(),)
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _revision(folder: Path) -> str:
    files = _weights(folder)
    full = sum(file.stat().st_size for file in files) <= FULL_HASH_BYTES
    digest = hashlib.sha256()
    _add_file(digest, folder / "config.json")
    for file in files:
        digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
        if full:
            _add_file(digest, file)
        elif file.suffix == ".safetensors":
            digest.update(_safetensors_header(file))
    return f"{'sha256' if full else 'headers'}:{digest.hexdigest()[:_DIGITS]}"


def _add_file(digest: _Digest, file: Path) -> None:
    if not file.is_file():
        return
    with file.open("rb") as stream:
        while block := stream.read(_CHUNK):
            digest.update(block)


def _safetensors_header(file: Path) -> bytes:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return stream.read(size)


def _read_cache(cache: Path, stamp: str) -> Hashes | None:
    if not cache.is_file():
        return None
    # A cache cut short by a crash is a miss, not a fault.
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        entry = msgspec.json.decode(cache.read_bytes(), type=dict[str, str])
        if entry.get("stamp") == stamp and "revision" in entry and "tokenizer" in entry:
            return Hashes(entry["revision"], entry["tokenizer"])
    return None


def _write_cache(cache: Path, stamp: str, hashes: Hashes) -> None:
    entry = {"stamp": stamp, "revision": hashes.revision, "tokenizer": hashes.tokenizer}
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(entry))
    temporary.replace(cache)
