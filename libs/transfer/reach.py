"""Reading another process' memory on the same host: the `cma` lane.

The kernel copies once, from the pages of the one straight into the pages of the other, in the
reader's own call. Nothing is posted, so nothing is left behind when either of them dies, and only
the owner of pages writes them.

A read may find memory that its owner has given up meanwhile. So each read ends with a look at the
room's lease, a word that the owner clears before it lets go: what was read under a lease that still
holds is what was offered.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.crew import Crew

__all__ = [
    "ENTRY",
    "LONG",
    "Lease",
    "Table",
    "blocked",
    "peek",
    "pull",
    "pull_leased",
    "pull_shared",
    "table_of",
]

Table = npt.NDArray[np.void]

ENTRY = np.dtype([("at", "<u8"), ("length", "<u8")])
"""One run of bytes, as the kernel wants it."""
LONG = 8
"""A chunk that is read where it lies may be so many times longer than one that is gathered."""

_WORD = 8
_MOST_ENTRIES = 1024
"""The kernel takes no more runs a call."""
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_STATUS = Path("/proc/self/status")
_CAP_SYS_PTRACE = 19


class Lease:
    """A word that says that memory may still be read; its address goes to the reader."""

    def __init__(self, value: int) -> None:
        self._word = np.array([value], np.uint64)

    @property
    def address(self) -> int:
        """Where the word is."""
        return self._word.ctypes.data

    def end(self) -> None:
        """Clear the word; what is read from now on will be thrown away."""
        self._word[0] = 0


def blocked() -> str | None:
    """Return why this process cannot read its peers' memory, or None."""
    probe = np.array([1, 0], np.uint64)
    try:
        pull(os.getpid(), _entry(probe, 0), _entry(probe, 1))
    except OSError as error:
        return f"lane cma is blocked: process_vm_readv says {error.strerror}"
    scope = int(_YAMA.read_text()) if _YAMA.exists() else 0
    if scope and not _has_capability():
        return f"lane cma is blocked: kernel.yama.ptrace_scope is {scope}"
    return None


def peek(pid: int, address: int) -> int:
    """Return one word of another process.

    Raises:
        OSError: it is not there, or not to be read.
    """
    word = ctypes.c_uint64()
    ours = (ctypes.c_uint64 * 2)(ctypes.addressof(word), _WORD)
    theirs = (ctypes.c_uint64 * 2)(address, _WORD)
    _read(pid, (ours, 1), (theirs, 1), _WORD)
    return word.value


def table_of(runs: tuple[tuple[int, int], ...]) -> Table:
    """Return runs (address, length) as a table."""
    return np.array(list(runs), ENTRY)


def pull(pid: int, remote: Table, local: Table) -> None:
    """Copy the bytes of `remote` runs of a process into `local` runs of this one, without the GIL.

    Both tables are one stream of bytes, of the same length.

    Raises:
        OSError: the process is gone, or its memory is not there or not to be read.
        ValueError: they are not of the same length.
    """
    total = int(local["length"].sum())
    _check(remote, total)
    calls: Iterable[tuple[Table, Table, int]] = ((remote, local, total),)
    if max(len(remote), len(local)) > _MOST_ENTRIES:
        calls = _calls(remote, local, total)
    for theirs, ours, size in calls:
        _read(pid, (ours.ctypes.data, len(ours)), (theirs.ctypes.data, len(theirs)), size)


def pull_shared(pid: int, remote: Table, local: Table, crew: Crew) -> None:
    """Copy like `pull` in parts of equal bytes, two for each thread, so that a late one does less.

    Raises:
        OSError: as `pull`.
    """
    theirs, ours = remote["length"].cumsum(), local["length"].cumsum()
    total = int(ours[-1])
    count = min(2 * crew.threads, total)

    def copy(start: int, stop: int) -> None:
        pull(pid, _cut(remote, theirs, start, stop), _cut(local, ours, start, stop))

    edges = [total * place // count for place in range(count + 1)]
    crew.share(partial(copy, *edge) for edge in itertools.pairwise(edges))


def pull_leased(pid: int, offered: Table, local: Table, crew: Crew | None = None) -> int:
    """Copy like `pull` what a chunk offers, whose first run is the lease; return that word.

    The lease is read after all else: the kernel takes runs in their order, so it is put last; and
    where a crew has shared the copy, when all of its parts are done.

    Raises:
        OSError: as `pull`.
        ValueError: as `pull`.
    """
    total = int(local["length"].sum())
    if crew is not None and crew.is_worth(total):
        _check(offered, total + _WORD)
        pull_shared(pid, offered[1:], local, crew)
        return peek(pid, int(offered["at"][0]))
    word = np.zeros(1, np.uint64)
    remote, ours = np.empty_like(offered), np.empty(len(local) + 1, ENTRY)
    remote[:-1], remote[-1] = offered[1:], offered[0]
    ours[:-1], ours[-1] = local, (word.ctypes.data, _WORD)
    pull(pid, remote, ours)
    return int(word[0])


def _read(pid: int, ours: tuple[Any, int], theirs: tuple[Any, int], size: int) -> None:
    copied = _readv(pid, *ours, *theirs, 0)
    if copied < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if copied != size:
        raise OSError(errno.EFAULT, f"{copied} of {size} bytes were there")


def _check(remote: Table, total: int) -> None:
    offered = int(remote["length"].sum())
    if total != offered:
        raise ValueError(f"{total} bytes are to be filled, {offered} are offered")


def _calls(remote: Table, local: Table, total: int) -> Iterator[tuple[Table, Table, int]]:
    """Cut both tables into what the kernel takes at once, and the bytes of each call."""
    theirs, ours = np.cumsum(remote["length"]), np.cumsum(local["length"])
    done = 0
    while done < total:
        stop = min(_reach(theirs, done), _reach(ours, done))
        yield _cut(remote, theirs, done, stop), _cut(local, ours, done, stop), stop - done
        done = stop


def _reach(ends: npt.NDArray[np.uint64], start: int) -> int:
    """Return where the most entries that one call takes from `start` on end."""
    first = int(np.searchsorted(ends, start, side="right"))
    return int(ends[min(first + _MOST_ENTRIES, len(ends)) - 1])


def _cut(table: Table, ends: npt.NDArray[np.uint64], start: int, stop: int) -> Table:
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    part = table[first : last + 1].copy()
    skip = start - (int(ends[first]) - int(table["length"][first]))
    part["at"][0] += skip
    part["length"][0] -= skip
    part["length"][-1] -= int(ends[last]) - stop
    return part


def _entry(words: npt.NDArray[np.uint64], place: int) -> Table:
    return table_of(((words.ctypes.data + 8 * place, 8),))


def _has_capability() -> bool:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    return False


_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_readv.restype = ctypes.c_ssize_t
_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)
