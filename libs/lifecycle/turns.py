"""Short turns on a core, for processes that pass things on beside one that computes."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

__all__ = ["ask_for_short_turns", "turn_of"]

_TURN_NS = 100_000
_KERNELS_OWN = 0
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of `sched_setattr` and `sched_getattr`, which the C library has no names for."""
_NORMAL = 0


class _Attributes(ctypes.Structure):
    """The kernel's `struct sched_attr`, up to where all versions have it."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def ask_for_short_turns(pids: Iterable[int], *, spare: Collection[int] = ()) -> int:
    """Ask for short turns on a core for all threads of processes but those in `spare`.

    Where cores are few, whoever passes a token on would wait until a computation has had its whole
    turn; Linux lets a thread with shorter turns begin at once (from 6.12 on; before, and elsewhere,
    nothing changes). Threads inherit the length of their turns, so those in `spare` are given the
    kernel's own again. Returns how many threads have short turns now. Nothing depends on it.
    """
    taken = 0
    for pid in pids:
        try:
            threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):  # it has ended, or this is no Linux
            continue
        for thread in threads:
            if thread in spare:
                _ask(thread, _KERNELS_OWN)
            else:
                taken += _ask(thread, _TURN_NS)
    return taken


def turn_of(thread: int) -> int | None:
    """Return the length of a thread's turns in nanoseconds, None where it cannot be told."""
    found = _read(thread)
    return found.runtime if found is not None else None


def _ask(thread: int, turn_ns: int) -> bool:
    found = _read(thread)
    if found is None or found.policy != _NORMAL:
        return False
    found.runtime = turn_ns
    return _call(0, thread, found) == 0


def _read(thread: int) -> _Attributes | None:
    found = _Attributes()
    size = ctypes.sizeof(found)
    return found if _call(1, thread, found, size) == 0 else None


def _call(which: int, thread: int, attributes: _Attributes, *size: int) -> int:
    numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return -1
    attributes.size = ctypes.sizeof(attributes)
    call = ctypes.CDLL(None).syscall
    return call(numbers[which], thread, ctypes.byref(attributes), *size, 0)
