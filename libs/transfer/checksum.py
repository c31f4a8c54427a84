"""Checksums over what a chunk carries, of some chunks or of all.

They find bytes that were changed on their way. They are no protection against an attacker, who
would write the checksum too.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import xxhash

from proto.ids import Room

__all__ = ["digest_of", "digest_of_runs", "is_checked"]

_MASK = 0xFFFFFFFF


def is_checked(room: Room, sequence: int, every: int) -> bool:
    """Return whether a chunk is one of those `every` so many that are checked; 0 checks none.

    Rooms are random, so each chunk of a room has the same chance, the only one of a short room too.
    """
    return every > 0 and (room + sequence) % every == 0


def digest_of(data: npt.NDArray[np.uint8]) -> int:
    """Return 32 bits that stand for bytes; about 50 GB/s."""
    return xxhash.xxh3_64_intdigest(data.data) & _MASK


def digest_of_runs(runs: npt.NDArray[np.void]) -> int:
    """Return the same for runs of this process' memory (`at`, `length`), one after the other."""
    hasher = xxhash.xxh3_64()
    for at, length in zip(runs["at"].tolist(), runs["length"].tolist(), strict=True):
        hasher.update((ctypes.c_char * length).from_address(at))
    return hasher.intdigest() & _MASK
