"""The compatibility card of a running SGLang engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libs.engine.options import HostOptions
from libs.models.hashes import Hashes, hash_folder
from libs.sglang_plugins import draft_of
from proto.backend import PlaneOpened
from proto.workers import CompatCard

__all__ = ["compat_facts", "make_card", "model_hashes"]


def model_hashes(options: HostOptions) -> Hashes:
    """Return the hashes of the model, or its name where there is no local folder."""
    folder = Path(options.model_path)
    if folder.is_dir():
        return hash_folder(folder)
    return Hashes(options.model_path, options.model_path)


def compat_facts(hashes: Hashes, version: str) -> dict[str, str]:
    """Return what two engines must share beyond what their schedulers know, by card field."""
    return {
        "revision": hashes.revision,
        "tokenizer": hashes.tokenizer,
        "engine": "sglang",
        "engine_version": version,
    }


def make_card(
    options: HostOptions,
    hashes: Hashes,
    version: str,
    *,
    model: Any,
    arguments: Any,
    opened: PlaneOpened | None,
) -> CompatCard:
    """Return the card.

    Args:
        options: what the host was asked for.
        hashes: identity of the model by content.
        version: of SGLang.
        model: SGLang's model configuration.
        arguments: SGLang's resolved arguments.
        opened: what the scheduler said of its memory; an aggregated engine says nothing.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    return CompatCard(
        model=options.served_model,
        revision=hashes.revision,
        tokenizer=hashes.tokenizer,
        dtype=dtype,
        kv_dtype=_kv_dtype(opened, str(arguments.kv_cache_dtype), dtype),
        kv_layout=opened.kv_layout if opened else "nhd",
        page_size=opened.page_size if opened else int(arguments.page_size),
        layers=int(model.num_hidden_layers),
        kv_heads=int(model.get_num_kv_heads(arguments.tp_size)),
        head_dim=int(model.head_dim),
        tp=int(arguments.tp_size),
        pp=int(arguments.pp_size),
        attention=str(arguments.attention_backend),
        engine="sglang",
        engine_version=version,
        draft=draft_of(arguments),
        context_tokens=int(model.context_len),
    )


def _kv_dtype(opened: PlaneOpened | None, asked: str, dtype: str) -> str:
    name = opened.kv_dtype if opened else asked
    return dtype if name == "auto" else name
