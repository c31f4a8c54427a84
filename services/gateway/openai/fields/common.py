"""Rows that several endpoints share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from services.gateway.openai.fields.table import Field, Stance

__all__ = ["DRAWING", "INTERNAL", "LABEL", "LABELS", "UNUSED", "done", "no_effect", "refused"]

LABEL = Annotated[str, Meta(max_length=512)]
"""A text that names something for the client's own use."""
LABELS = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


def done(notes: dict[str, str]) -> tuple[Field, ...]:
    """Return rows of fields that are carried out, by name and note."""
    return tuple(Field(name, Stance.DONE, note) for name, note in notes.items())


def no_effect(name: str, note: str, *values: object, kind: Any = None) -> Field:
    """Return a row of a field that may have these values, or any of a type, without effect."""
    return Field(name, Stance.NO_EFFECT, note, values, kind)


def refused(*names: str) -> tuple[Field, ...]:
    """Return rows of fields that are known and refused."""
    return tuple(Field(name, Stance.REFUSED) for name in names)


DRAWING = {
    "temperature": "0 to 2, default 1",
    "top_p": "over 0 to 1, default 1",
    "stop": "a string or up to 4; not part of the answer",
    "stream": "",
    "stream_options": "`include_usage`; `include_obfuscation` has no effect; only with `stream`",
    "seed": "64 bits, as well as the engine can: equal requests are drawn alike on equal workers"
    " under equal load; further choices count on from it",
    "frequency_penalty": "-2 to 2",
    "presence_penalty": "-2 to 2",
    "logit_bias": "up to 1024 token ids, -100 to 100",
    "top_k": "extension; -1 (off) or at least 1",
    "min_p": "extension; 0 to 1",
    "min_tokens": "extension; at most the limit of the answer",
    "repetition_penalty": "extension; over 0 to 2",
    "stop_token_ids": "extension; up to 64",
    "ignore_eos": "extension",
    "skip_special_tokens": "extension; default true",
    "priority": "extension; -10 to 0: behind others of the same key",
    "cache_salt": "extension; cached prefixes are shared with requests of the same salt only",
}
"""Notes of what endpoints that generate share."""

UNUSED = (
    *("logit_processor", "custom_params", "custom_logit_processor", "lora_path", "lora_id"),
    *("return_hidden_states", "use_beam_search", "length_penalty", "early_stopping"),
)
"""Extensions of engines that have no meaning here."""

INTERNAL: tuple[Field, ...] = tuple(
    Field(name, Stance.INTERNAL)
    for name in (
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "room", "rid", "attempt"),
        *("routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank", "session_params"),
        *("incarnation", "nonce", "input_ids", "external_trace_header"),
    )
)
"""What routes a request inside: refused from outside everywhere."""
