from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from libs.models.convert import convert

HEADS, KV_HEADS, HIDDEN = 2, 1, 32


def _write(path: Path, *, architecture: str = "llama") -> dict[str, np.ndarray]:
    """Write a one-layer model in GGUF; return its tensors as a Hugging Face model has them."""
    source = np.random.default_rng(1)
    head = HIDDEN // HEADS
    shapes = {
        "token_embd": (4, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * head, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, 64),
    }
    tensors = {
        name: source.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "aa"])
    writer.add_token_types([3, 3, 1, 1])
    writer.add_token_merges(["a a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, values in tensors.items():
        stored = values
        for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            if part in name:
                stored = (
                    values.reshape(heads, 2, values.shape[0] // heads // 2, HIDDEN)
                    .swapaxes(1, 2)
                    .reshape(values.shape)
                )
        writer.add_tensor(f"{name}.weight", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _read(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    return {
        name: (np.frombuffer(body[slice(*facts["data_offsets"])], "<u2").astype("<u4") << 16)
        .view("<f4")
        .reshape(facts["shape"])
        for name, facts in header.items()
        if name != "__metadata__"
    }


def test_a_gguf_model_becomes_a_hugging_face_folder(tmp_path: Path):
    """Weights have their names, their order and their values, rounded to bfloat16."""
    tensors = _write(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path)
    read = _read(tmp_path / "model.safetensors")
    names = {
        "token_embd": "model.embed_tokens.weight",
        "output_norm": "model.norm.weight",
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj.weight",
        "blk.0.attn_k": "model.layers.0.self_attn.k_proj.weight",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj.weight",
    }
    assert set(read) == set(names.values())
    for name, values in tensors.items():
        error = np.abs(read[names[name]] - values) / np.abs(values)
        assert error.max() <= 2**-8
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["head_dim"] == HIDDEN // HEADS
    assert config["num_key_value_heads"] == KV_HEADS
    assert config["tie_word_embeddings"]
    assert config["eos_token_id"] == 1
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


def test_another_architecture_is_refused(tmp_path: Path):
    """Names and shapes of other models would be wrong."""
    _write(tmp_path / "m.gguf", architecture="qwen2")
    with pytest.raises(ValueError, match="qwen2"):
        convert(tmp_path / "m.gguf", tmp_path)
