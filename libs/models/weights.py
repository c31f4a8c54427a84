"""Writing a safetensors file: a length, a JSON header, then the bytes of all tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Tensor", "write_safetensors"]

_ALIGNMENT = 8


class Tensor(NamedTuple):
    """One tensor as bytes, little-endian, row by row."""

    dtype: str
    """As the format names it: `BF16`, `F32`."""
    shape: tuple[int, ...]
    data: bytes


def write_safetensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors in the order of their names; the same input gives the same bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        begin, end = end, end + len(tensors[name].data)
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": tensors[name].shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name in sorted(tensors):
            stream.write(tensors[name].data)
