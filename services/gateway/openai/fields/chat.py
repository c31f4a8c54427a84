"""The fields of `POST /v1/chat/completions`."""

from __future__ import annotations

from services.gateway.openai.fields.common import (
    INTERNAL,
    LABEL,
    LABELS,
    done,
    no_effect,
    refused,
)
from services.gateway.openai.fields.table import FieldTable

__all__ = ["CHAT_FIELDS"]

_ON, _OFF = True, False

_DONE = {
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

_NO_EFFECT = (
    no_effect("user", "any text", kind=LABEL),
    no_effect("metadata", "up to 16 texts", kind=LABELS),
    no_effect("safety_identifier", "any text", kind=LABEL),
    no_effect("prompt_cache_key", "any text", kind=LABEL),
    no_effect("prompt_cache_retention", "`in_memory`", "in_memory", "in-memory"),
    no_effect("prompt_cache_options", "`{}`", {}),
    no_effect("store", "`false`", _OFF),
    no_effect("service_tier", "`auto`, `default`", "auto", "default"),
    no_effect("verbosity", "`medium`", "medium"),
    no_effect("reasoning_effort", "`none`", "none"),
    no_effect("modalities", '`["text"]`', ["text"]),
    no_effect("parallel_tool_calls", "any, as there are no tools", kind=bool),
    no_effect("tool_choice", "`none`, `auto`, as there are no tools", "none", "auto"),
    no_effect("tools", "`[]`", []),
    no_effect("response_format", '`{"type": "text"}`', {"type": "text"}),
    no_effect("logprobs", "`false`", _OFF),
    no_effect("top_logprobs", "`0`", 0),
    no_effect("logit_bias", "`{}`", {}),
    no_effect("skip_special_tokens", "`true`", _ON),
    no_effect("min_tokens", "`0`", 0),
    no_effect("chat_template_kwargs", "`{}`", {}),
    no_effect("continue_final_message", "`false`", _OFF),
    no_effect("add_generation_prompt", "`true`", _ON),
    no_effect("priority", "`0`", 0),
)

_REFUSED = refused(
    *("seed", "audio", "prediction", "web_search_options", "moderation", "functions"),
    *("function_call", "regex", "ebnf", "json_schema", "cache_salt", "separate_reasoning"),
    *("logit_processor", "custom_params", "lora_path", "return_hidden_states", "echo"),
)

CHAT_FIELDS = FieldTable(done(_DONE), _NO_EFFECT, _REFUSED, INTERNAL)
"""Every field that is known."""
