"""The one table of the fields of a chat request: carried out, accepted without effect, or refused.

The field table of the README is generated from it. A field that is not in the table is refused.
`null` means "not given" for every field but the internal ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.errors import ErrorCode, PdbusError

__all__ = ["CHAT_FIELDS", "Field", "Stance", "check_fields", "field_table"]


class Stance(StrEnum):
    """What becomes of a field."""

    DONE = "implemented"
    NO_EFFECT = "accepted"
    REFUSED = "refused"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Field:
    """One row."""

    name: str
    stance: Stance
    note: str = ""
    values: tuple[object, ...] = ()
    """Values that are accepted because they ask for nothing."""
    kind: Any = None
    """Or the type of all accepted values."""

    def accepts(self, raw: msgspec.Raw) -> bool:
        """Return whether a field that is not carried out may have this JSON value."""
        if self.kind is not None:
            try:
                msgspec.json.decode(raw, type=self.kind)
            except msgspec.ValidationError:
                return False
            return True
        value = msgspec.json.decode(raw)
        return any(value == known and type(value) is type(known) for known in self.values)


_ON, _OFF = True, False
_Label = Annotated[str, Meta(max_length=512)]
_Labels = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


def _rows() -> tuple[Field, ...]:
    return (*_done(), *_no_effect(), *_refused(), *_internal())


def _done() -> tuple[Field, ...]:
    notes = {
        "model": "one of `/v1/models`",
        "messages": "roles system, developer (as system), user, assistant, tool; text content only",
        "max_completion_tokens": "at least 1; prompt and answer must fit the model's context",
        "max_tokens": "older name; `max_completion_tokens` wins",
        "temperature": "0 to 2, default 1",
        "top_p": "over 0 to 1, default 1",
        "stop": "a string or up to 4; not part of the answer",
        "stream": "",
        "stream_options": "`include_usage`; only with `stream`",
        "n": "only 1",
        "frequency_penalty": "-2 to 2",
        "presence_penalty": "-2 to 2",
        "top_k": "extension; -1 (off) or at least 1",
        "min_p": "extension; 0 to 1",
        "repetition_penalty": "extension; over 0 to 2",
        "stop_token_ids": "extension; up to 64",
        "ignore_eos": "extension",
    }
    return tuple(Field(name, Stance.DONE, note) for name, note in notes.items())


def _no_effect() -> tuple[Field, ...]:
    def row(name: str, note: str, *values: object, kind: Any = None) -> Field:
        return Field(name, Stance.NO_EFFECT, note, values, kind)

    return (
        row("user", "any text", kind=_Label),
        row("metadata", "up to 16 texts", kind=_Labels),
        row("safety_identifier", "any text", kind=_Label),
        row("prompt_cache_key", "any text", kind=_Label),
        row("prompt_cache_retention", "`in_memory`", "in_memory", "in-memory"),
        row("prompt_cache_options", "`{}`", {}),
        row("store", "`false`", _OFF),
        row("service_tier", "`auto`, `default`", "auto", "default"),
        row("verbosity", "`medium`", "medium"),
        row("reasoning_effort", "`none`", "none"),
        row("modalities", '`["text"]`', ["text"]),
        row("parallel_tool_calls", "any, as there are no tools", kind=bool),
        row("tool_choice", "`none`, `auto`, as there are no tools", "none", "auto"),
        row("tools", "`[]`", []),
        row("response_format", '`{"type": "text"}`', {"type": "text"}),
        row("logprobs", "`false`", _OFF),
        row("top_logprobs", "`0`", 0),
        row("logit_bias", "`{}`", {}),
        row("skip_special_tokens", "`true`", _ON),
        row("min_tokens", "`0`", 0),
        row("chat_template_kwargs", "`{}`", {}),
        row("continue_final_message", "`false`", _OFF),
        row("add_generation_prompt", "`true`", _ON),
        row("priority", "`0`", 0),
    )


def _refused() -> tuple[Field, ...]:
    names = (
        *("seed", "audio", "prediction", "web_search_options", "moderation", "functions"),
        *("function_call", "regex", "ebnf", "json_schema", "cache_salt", "separate_reasoning"),
        *("logit_processor", "custom_params", "lora_path", "return_hidden_states", "echo"),
    )
    return tuple(Field(name, Stance.REFUSED) for name in names)


def _internal() -> tuple[Field, ...]:
    names = (
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "room", "rid", "attempt"),
        *("routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank", "session_params"),
        *("incarnation", "nonce", "input_ids", "external_trace_header"),
    )
    return tuple(Field(name, Stance.INTERNAL) for name in names)


CHAT_FIELDS: Mapping[str, Field] = {row.name: row for row in _rows()}
"""Every field of `POST /v1/chat/completions` that is known."""

_NULL = b"null"


def check_fields(fields: Mapping[str, msgspec.Raw]) -> None:
    """Refuse a request that asks for something that would not happen.

    Raises:
        PdbusError: `unsupported_parameter`, naming the first such field.
    """
    for name, raw in fields.items():
        row = CHAT_FIELDS.get(name)
        if row is not None and row.stance is Stance.DONE:
            continue
        if row is None:
            raise _unsupported(name, "Unknown parameter")
        if row.stance is Stance.INTERNAL:
            raise _unsupported(name, "This parameter is internal and cannot be set")
        if bytes(raw) == _NULL or row.accepts(raw):
            continue
        text = "Unsupported parameter"
        if row.stance is Stance.NO_EFFECT:
            text = f"Unsupported value (accepted: {row.note})"
        raise _unsupported(name, text)


def field_table() -> str:
    """Return the table for the README, as Markdown."""
    lines = ["| field | stance | notes |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.stance} | {row.note} |" for row in CHAT_FIELDS.values()]
    lines.append("| any other | refused | 400 `unsupported_parameter` names it |")
    return "\n".join(lines)


def _unsupported(name: str, text: str) -> PdbusError:
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    return PdbusError(ErrorCode.UNSUPPORTED_PARAMETER, f"{text}: '{shown}'.", param=shown)


_SHOWN = 128
"""Characters of an unknown name that are given back."""
