from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from libs.transfer.checksum import digest_of, digest_of_runs
from libs.transfer.reach import table_of


@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(1, 50), max_size=6))
def test_a_digest_does_not_depend_on_how_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    """Bytes in one piece and the same bytes in runs have one digest; a changed byte has another."""
    memory = np.frombuffer(bytearray(data), np.uint8)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    runs = table_of(
        tuple((memory.ctypes.data + first, end - first) for first, end in itertools.pairwise(edges))
    )
    assert digest_of_runs(runs) == digest_of(memory)
    memory[0] ^= 1
    assert digest_of_runs(runs) != digest_of(np.frombuffer(data, np.uint8))
