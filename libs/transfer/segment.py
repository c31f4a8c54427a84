"""Memory that two processes of one host share: decode's slabs, where prefill puts chunks down.

It is System V memory, as UCX's lane of that name has it. A segment is marked for removal as soon as
its maker holds it, so nothing is left of it when the last process that holds it lets go or dies.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Segment", "SegmentError"]

Bytes = npt.NDArray[np.uint8]

_LISTED = Path("/proc/sysvipc/shm")
_ID, _SIZE, _MAKER = 1, 3, 4
"""Columns of that list."""
_PRIVATE = 0
_CREATE = 0o1600
"""IPC_CREAT, for this user alone."""
_REMOVE = 0
"""IPC_RMID; Linux lets others join a segment that is marked so, as long as somebody holds it."""
_ALIGN = 4096
_FAILED = ctypes.c_void_p(-1).value


class SegmentError(Exception):
    """A segment cannot be had."""


class Segment:
    """Slabs of equal length in shared memory.

    Use `make` or `join`.
    """

    def __init__(self, number: int, slabs: list[Bytes]) -> None:
        self.number = number
        """What the other process needs to join."""
        self.slabs = slabs

    @classmethod
    def make(cls, count: int, slab_bytes: int) -> Segment:
        """Return a new segment, which goes with its last holder.

        Raises:
            SegmentError: the system has none left.
        """
        number = _libc.shmget(_PRIVATE, count * _stride(slab_bytes), _CREATE)
        if number < 0:
            raise SegmentError(_reason())
        try:
            return cls(number, _hold(number, count, slab_bytes))
        finally:
            _libc.shmctl(number, _REMOVE, None)

    @classmethod
    def join(cls, number: int, maker: int, count: int, slab_bytes: int) -> Segment:
        """Return a segment that another process has made.

        Raises:
            SegmentError: there is none of that process that is so long, or it may not be joined.
        """
        if _listed(number, maker) < count * _stride(slab_bytes):
            raise SegmentError(f"process {maker} has no such segment {number}")
        return cls(number, _hold(number, count, slab_bytes))


def _stride(slab_bytes: int) -> int:
    return -(-slab_bytes // _ALIGN) * _ALIGN


def _listed(number: int, maker: int) -> int:
    """Return the length of a segment of a process, 0 if there is none."""
    try:
        lines = _LISTED.read_text().splitlines()[1:]
    except OSError as error:
        raise SegmentError(f"{_LISTED}: {error.strerror}") from error
    for line in lines:
        words = line.split()
        if int(words[_ID]) == number and int(words[_MAKER]) == maker:
            return int(words[_SIZE])
    return 0


def _hold(number: int, count: int, slab_bytes: int) -> list[Bytes]:
    address = _libc.shmat(number, None, 0)
    if address == _FAILED:
        raise SegmentError(_reason())
    stride = _stride(slab_bytes)
    memory = (ctypes.c_ubyte * (count * stride)).from_address(address)
    # Arrays keep the memory; the last one that goes lets go of it.
    weakref.finalize(memory, _libc.shmdt, address).atexit = False
    whole = np.frombuffer(memoryview(memory), np.uint8)
    return [whole[at : at + slab_bytes] for at in range(0, count * stride, stride)]


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)
_libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_libc.shmat.restype = ctypes.c_void_p
_libc.shmdt.argtypes = (ctypes.c_void_p,)
_libc.shmctl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
