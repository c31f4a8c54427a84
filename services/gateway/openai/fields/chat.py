"""The fields of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Literal

from services.gateway.openai.fields.common import (
    DRAWING,
    INTERNAL,
    LABEL,
    LABELS,
    UNUSED,
    done,
    no_effect,
    refused,
)
from services.gateway.openai.fields.table import FieldTable

__all__ = ["CHAT_FIELDS"]

_OFF = False

_DONE = {
    "model": "one of `/v1/models`",
    "messages": "roles system, developer (as system), user, assistant, tool; text content,"
    " `tool_calls` of the assistant, `reasoning_content`",
    "max_completion_tokens": "at least 1; prompt and answer must fit the model's context",
    "max_tokens": "older name; `max_completion_tokens` wins",
    **DRAWING,
    "n": "1 to 128; each choice is a request of its own, a few at a time",
    "logprobs": "where the model's workers can",
    "top_logprobs": "0 to 20; only with `logprobs`",
    "response_format": "`text`, `json_object`, `json_schema`: answers always match, `strict` or"
    " not; what could not be enforced is refused; not beside `tools` that may be called",
    "tools": "up to 128 functions; templates without a place for them get them in the system's"
    " turn; `strict` is kept where calls are forced",
    "tool_choice": "`none`, `auto`, `required`, one function, `allowed_tools`",
    "parallel_tool_calls": "`false`: only the first call is made or given",
    "reasoning_effort": "told to templates that ask for it; otherwise no effect",
    "regex": "extension; the whole answer matches",
    "ebnf": "extension; a grammar with the rule `root`",
    "json_schema": "extension; as `response_format`, as an object or as text",
    "chat_template_kwargs": "extension; variables of the template, but not its own",
    "add_generation_prompt": "extension; default true",
    "continue_final_message": "extension; the answer goes on with the assistant's last message",
    "separate_reasoning": "extension; `false` leaves reasoning in the text",
}

_NO_EFFECT = (
    no_effect("user", "any text", kind=LABEL),
    no_effect("metadata", "up to 16 texts", kind=LABELS),
    no_effect("safety_identifier", "any text", kind=LABEL),
    no_effect("prompt_cache_key", "any text", kind=LABEL),
    no_effect("prompt_cache_retention", "`in_memory`, `24h`", "in_memory", "in-memory", "24h"),
    no_effect("prompt_cache_options", "any object of texts", kind=LABELS),
    no_effect("store", "`false`", _OFF),
    no_effect(
        "service_tier",
        "`auto`, `default`, `flex`, `scale`, `priority`",
        *("auto", "default", "flex", "scale", "priority"),
    ),
    no_effect("verbosity", "`low`, `medium`, `high`", kind=Literal["low", "medium", "high"]),
    no_effect("modalities", '`["text"]`', ["text"]),
)

_REFUSED = refused(
    *("audio", "prediction", "web_search_options", "moderation", "functions"),
    *("function_call", "echo", "suffix", "best_of", *UNUSED),
)

CHAT_FIELDS = FieldTable(done(_DONE), _NO_EFFECT, _REFUSED, INTERNAL)
"""Every field that is known."""
