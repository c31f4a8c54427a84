"""A two-layer random Llama in float32, for tests that need a real engine but no sense.

float32, because bfloat16 results depend on the batch size, so tokens could not be compared under
concurrency. The wide initial range keeps greedy answers from repeating one token.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from libs.models.weights import Tensor, write_safetensors

__all__ = ["write_tiny"]

_SEED = 20261129
_LAYERS = 2
_HIDDEN = 64
_INNER = 128
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 16
_RANGE = 0.2


def write_tiny(folder: Path, vocabulary: int) -> None:
    """Write config and weights of the tiny model; the tokenizer is written elsewhere."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "initializer_range": _RANGE,
        "vocab_size": vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    tensors = {
        name: Tensor("F32", values.shape, values.astype("<f4").tobytes())
        for name, values in _weights(vocabulary).items()
    }
    write_safetensors(folder / "model.safetensors", tensors)


def _weights(vocabulary: int) -> dict[str, npt.NDArray[np.float32]]:
    source = np.random.Generator(np.random.PCG64(_SEED))

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return source.standard_normal(shape, dtype=np.float32) * np.float32(_RANGE)

    ones = np.ones(_HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": draw(vocabulary, _HIDDEN), "model.norm.weight": ones}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": ones.copy(),
            f"{prefix}.post_attention_layernorm.weight": ones.copy(),
            f"{prefix}.self_attn.q_proj.weight": draw(_HEADS * _HEAD_DIM, _HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": draw(_HIDDEN, _HEADS * _HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": draw(_INNER, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": draw(_INNER, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": draw(_HIDDEN, _INNER),
        }
    return weights
