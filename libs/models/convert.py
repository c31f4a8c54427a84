"""A GGUF file of a Llama model as a Hugging Face folder in bfloat16; runs as a child process.

Done with numpy alone: no torch, a few seconds, the same bytes every time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from libs.models.vocabulary import Vocabulary, write_tokenizer
from libs.models.weights import Tensor, write_safetensors

__all__ = ["convert", "main"]

Array = npt.NDArray[np.float32]

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_CONTROL_TOKEN = 3
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


def convert(source: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a GGUF Llama model into `folder`.

    Raises:
        ValueError: the file is not of the Llama architecture.
    """
    reader = GGUFReader(source)
    facts = _Facts(reader)
    if facts["general.architecture"] != "llama":
        raise ValueError(f"architecture is {facts['general.architecture']}, expected llama")
    print("reading the tokenizer", flush=True)
    _write_tokenizer(facts, folder)
    names = {tensor.name for tensor in reader.tensors}
    config = _config(facts, tied="output.weight" not in names)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    print(f"unpacking {len(names)} tensors", flush=True)
    heads = {
        "attn_q": int(config["num_attention_heads"]),
        "attn_k": int(config["num_key_value_heads"]),
    }
    tensors: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = _rotary_order(values, heads[part])
        tensors[_name(tensor.name)] = _bfloat16(values)
    print("writing the weights", flush=True)
    write_safetensors(folder / "model.safetensors", tensors)


def main() -> None:
    """Convert `argv[1]` into the folder `argv[2]`."""
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


class _Facts:
    """The metadata of a GGUF file by key."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()


def _write_tokenizer(facts: _Facts, folder: Path) -> None:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    kinds: list[int] = facts["tokenizer.ggml.token_type"]
    vocabulary = Vocabulary(
        tokens=tokens,
        merges=facts["tokenizer.ggml.merges"],
        special=[
            token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN
        ],
        roles={
            f"{short}_token": tokens[int(facts[f"tokenizer.ggml.{long}_token_id"])]
            for short, long in _ROLES.items()
        },
        template=facts["tokenizer.chat_template"],
    )
    write_tokenizer(folder, vocabulary)


def _config(facts: _Facts, *, tied: bool) -> dict[str, Any]:
    heads = int(facts["llama.attention.head_count"])
    hidden = int(facts["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(facts["llama.feed_forward_length"]),
        "num_hidden_layers": int(facts["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(facts["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "max_position_embeddings": int(facts["llama.context_length"]),
        "rms_norm_eps": float(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(facts["llama.rope.freq_base"]),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "vocab_size": int(facts["llama.vocab_size"]),
        "bos_token_id": int(facts["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(facts["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(facts["tokenizer.ggml.padding_token_id"]),
    }


def _name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return f"{_TOP[parts[0]]}.{parts[1]}"


def _rotary_order(values: Array, heads: int) -> Array:
    """Undo GGUF's interleaving of the two halves that rotary embedding turns."""
    rows, columns = values.shape
    split = values.reshape(heads, rows // heads // 2, 2, columns)
    return split.swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(values: Array) -> Tensor:
    """Round to nearest even and keep the upper half of each float32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return Tensor("BF16", values.shape, upper.tobytes())


if __name__ == "__main__":
    main()
