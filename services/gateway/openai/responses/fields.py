"""The fields of `POST /v1/responses`."""

from __future__ import annotations

from services.gateway.openai.fields import INTERNAL, LABELS, FieldTable, done, no_effect, refused

__all__ = ["FIELDS"]

_OFF = False
_INCLUDED: tuple[list[str], ...] = ([], ["reasoning.encrypted_content"])

_DONE = {
    "model": "one of `/v1/models`",
    "input": "a text, or items: `message` (text only), `function_call`, `function_call_output`;"
    " `reasoning` may come back and is not shown to the model again",
    "instructions": "a system message before the input",
    "max_output_tokens": "at least 1; prompt and answer must fit the model's context",
    "temperature": "0 to 2, default 1",
    "top_p": "over 0 to 1, default 1",
    "tools": "functions only",
    "tool_choice": "`none`, `auto`, `required`, one function, `allowed_tools`",
    "parallel_tool_calls": "",
    "text": "`format`: text, json_object, json_schema; `verbosity` has no effect",
    "reasoning": "`effort`: told to templates that ask for it; `summary` has no effect",
    "stream": "",
    "stream_options": "`include_obfuscation`: only `false`; only with `stream`",
    "metadata": "up to 16 texts, given back",
    "user": "any text, given back",
    "safety_identifier": "any text, given back",
    "prompt_cache_key": "any text, given back",
}

_NO_EFFECT = (
    no_effect("store", "`false`: nothing is stored", _OFF),
    no_effect("background", "`false`", _OFF),
    no_effect("truncation", "`disabled`", "disabled"),
    no_effect(
        "service_tier",
        "`auto`, `default`, `flex`, `scale`, `priority`",
        *("auto", "default", "flex", "scale", "priority"),
    ),
    no_effect(
        "include",
        '`[]`, `["reasoning.encrypted_content"]`: reasoning is given as it is',
        *_INCLUDED,
    ),
    no_effect("top_logprobs", "`0`", 0),
    no_effect("prompt_cache_retention", "`in_memory`, `24h`", "in_memory", "in-memory", "24h"),
    no_effect("prompt_cache_options", "any object of texts", kind=LABELS),
)

_REFUSED = refused(
    *("previous_response_id", "conversation", "prompt", "max_tool_calls", "context_management"),
    "moderation",
)

FIELDS = FieldTable(done(_DONE), _NO_EFFECT, _REFUSED, INTERNAL)
"""Every field that is known."""
