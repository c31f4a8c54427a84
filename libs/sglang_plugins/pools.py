"""SGLang's KV memory as arrays of pages, from the addresses that it hands to a KV backend.

Host memory is seen through its address. Device memory is described by the CUDA array interface,
for a data plane that can take it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.api import PagePool

__all__ = [
    "DeviceBuffer",
    "UnsupportedMemoryError",
    "check_supported",
    "device_pool",
    "host_pool",
    "pool_of",
]


class UnsupportedMemoryError(RuntimeError):
    """The engine's KV memory has a shape that this backend cannot move."""


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Device memory of shape (items, item_bytes), for whoever reads the CUDA array interface."""

    pointer: int
    items: int
    item_bytes: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.items, self.item_bytes),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }


def check_supported(args: Any, *, device: str, pp_size: int) -> None:
    """Refuse what this backend cannot move, before any request.

    Raises:
        UnsupportedMemoryError: the text names the feature.
    """
    problems = {
        f"state buffers {[str(kind) for kind in args.state_types]}": bool(args.state_types),
        f"KV layout {args.kv_layout}": args.kv_layout is not None,
        "draft KV buffers": bool(getattr(args, "num_draft_entries", 0)),
        f"pipeline parallel size {pp_size}": pp_size != 1,
        f"KV memory on {device}": device not in {"cpu", "cuda"},
        "no KV buffers": not args.kv_data_ptrs,
    }
    found = [text for text, wrong in problems.items() if wrong]
    if found:
        raise UnsupportedMemoryError(f"the ucx backend does not support: {', '.join(found)}")


def pool_of(
    device: str, pointers: Sequence[int], lengths: Sequence[int], item_bytes: Sequence[int]
) -> PagePool:
    """Return an engine's pages where they are."""
    if device == "cpu":
        return host_pool(pointers, lengths, item_bytes)
    return PagePool(device_pool(pointers, lengths, item_bytes))


def host_pool(
    pointers: Sequence[int], lengths: Sequence[int], item_bytes: Sequence[int]
) -> PagePool:
    """Return buffers in host memory as one array each, without a copy.

    Their owner must outlive the pool.
    """
    return PagePool(
        buffers=[
            _host_array(pointer, length, item)
            for pointer, length, item in zip(pointers, lengths, item_bytes, strict=True)
        ]
    )


def device_pool(
    pointers: Sequence[int], lengths: Sequence[int], item_bytes: Sequence[int]
) -> list[DeviceBuffer]:
    """Return buffers in device memory, described for the CUDA array interface."""
    return [
        DeviceBuffer(pointer, length // item, item)
        for pointer, length, item in zip(pointers, lengths, item_bytes, strict=True)
    ]


def _host_array(pointer: int, length: int, item: int) -> npt.NDArray[np.uint8]:
    items = length // item
    memory = (ctypes.c_uint8 * (items * item)).from_address(pointer)
    return np.ctypeslib.as_array(memory).reshape(items, item)
