from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from libs.sglang_plugins.pools import (
    UnsupportedMemoryError,
    check_supported,
    device_pool,
    host_pool,
    pool_of,
)


def _facts(array: np.ndarray, item: int) -> tuple[list[int], list[int], list[int]]:
    return [array.ctypes.data], [array.nbytes], [item]


def test_a_host_pool_is_the_memory_itself():
    """Writing a page writes SGLang's buffer, without a copy."""
    memory = np.zeros(6 * 8, dtype=np.uint8)
    pool = host_pool(*_facts(memory, 8))
    assert pool.buffers[0].shape == (6, 8)
    pool.buffers[0][2] = 7
    assert memory.reshape(6, 8)[2].tolist() == [7] * 8
    assert memory.sum() == 56


def test_an_incomplete_last_item_is_left_out():
    """A span that is no multiple of the item ends with the last whole item."""
    memory = np.zeros(20, dtype=np.uint8)
    assert host_pool(*_facts(memory, 8)).buffers[0].shape == (2, 8)


def test_device_memory_is_described_not_touched():
    """The CUDA array interface names pointer and shape."""
    (buffer,) = device_pool([4096], [80], [16])
    facts = buffer.__cuda_array_interface__
    assert facts["data"] == (4096, False)
    assert facts["shape"] == (5, 16)
    assert facts["typestr"] == "|u1"


def _arguments(**changes: object) -> SimpleNamespace:
    plain = {"state_types": [], "kv_layout": None, "num_draft_entries": 0, "kv_data_ptrs": [1]}
    return SimpleNamespace(**(plain | changes))


def test_a_plain_engine_is_supported():
    """Paged keys and values of one rank can be moved."""
    check_supported(_arguments(), device="cpu", pp_size=1)


@pytest.mark.parametrize(
    ("changes", "pp_size", "reason"),
    [
        ({"state_types": ["mamba"]}, 1, "mamba"),
        ({"kv_layout": "hnd"}, 1, "layout hnd"),
        ({"num_draft_entries": 2}, 1, "draft"),
        ({"kv_data_ptrs": []}, 1, "no KV buffers"),
        ({}, 2, "pipeline parallel size 2"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(
    changes: dict[str, object], pp_size: int, reason: str
):
    """The engine does not start, and the text says which feature is in the way."""
    with pytest.raises(UnsupportedMemoryError, match=reason):
        check_supported(_arguments(**changes), device="cpu", pp_size=pp_size)


def test_memory_of_an_unknown_kind_is_refused():
    """Host memory and CUDA memory can be copied; another device's addresses mean nothing here."""
    check_supported(_arguments(), device="cuda", pp_size=1)
    with pytest.raises(UnsupportedMemoryError, match="KV memory on xpu"):
        check_supported(_arguments(), device="xpu", pp_size=1)


def test_a_pool_is_where_the_memory_is():
    """Addresses of a device are never looked at from the host."""
    memory = np.zeros(6 * 8, dtype=np.uint8)
    assert pool_of("cpu", *_facts(memory, 8)).buffers[0].shape == (6, 8)
    (buffer,) = pool_of("cuda", [4096], [80], [16]).buffers
    assert buffer.__cuda_array_interface__["shape"] == (5, 16)
