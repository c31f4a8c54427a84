from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from libs.models.tiny import write_tiny
from libs.models.weights import Tensor, write_safetensors


def test_the_official_reader_reads_what_was_written(tmp_path: Path):
    """Names, shapes, types and values survive."""
    one = np.arange(6, dtype="<f4").reshape(2, 3)
    two = np.array([7.5], dtype="<f4")
    tensors = {
        "b.two": Tensor("F32", two.shape, two.tobytes()),
        "a.one": Tensor("F32", one.shape, one.tobytes()),
    }
    write_safetensors(tmp_path / "x.safetensors", tensors)
    read = load_file(tmp_path / "x.safetensors")
    assert set(read) == {"a.one", "b.two"}
    np.testing.assert_array_equal(read["a.one"], one)
    np.testing.assert_array_equal(read["b.two"], two)


def test_the_tiny_model_is_the_same_every_time(tmp_path: Path):
    """Two builds give the same bytes, so that two machines have the same model."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name, 300)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
    read = load_file(tmp_path / "a" / "model.safetensors")
    assert read["model.embed_tokens.weight"].shape == (300, 64)
    assert read["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
