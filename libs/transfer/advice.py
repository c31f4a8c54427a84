"""Advice to the kernel about memory that is copied in large runs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt

__all__ = ["advise_huge"]

_HUGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14

_madvise = ctypes.CDLL(None).madvise
_madvise.restype = ctypes.c_int
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def advise_huge(buffer: npt.NDArray[Any]) -> bool:
    """Ask for huge pages behind a buffer, for what of it is touched from now on.

    Another process' memory is read twice as fast there. Returns whether the kernel has taken the
    advice: not where the buffer is small, or the kernel knows no such pages. Nothing depends on it.
    """
    first = -(-buffer.ctypes.data // _HUGE_BYTES) * _HUGE_BYTES
    length = (buffer.ctypes.data + buffer.nbytes - first) // _HUGE_BYTES * _HUGE_BYTES
    return length > 0 and _madvise(first, length, _MADV_HUGEPAGE) == 0
