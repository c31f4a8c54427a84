"""The fields of `POST /v1/completions`."""

from __future__ import annotations

from services.gateway.openai.fields.common import (
    DRAWING,
    INTERNAL,
    LABEL,
    UNUSED,
    done,
    no_effect,
    refused,
)
from services.gateway.openai.fields.table import FieldTable

__all__ = ["COMPLETION_FIELDS"]

_DONE = {
    "model": "one of `/v1/models`",
    "prompt": "a text, texts, token ids, or lists of ids; prompts times `n` up to 128; the"
    " tokenizer may add its own tokens to a text, but not to ids",
    "max_tokens": "at least 1, default 16; prompt and answer must fit the model's context",
    "max_completion_tokens": "newer name; it wins",
    **DRAWING,
    "n": "1 to 128 for each prompt; choices of one prompt have consecutive indices",
    "best_of": "only the value of `n`",
    "logprobs": "0 to 5, where the model's workers can",
    "echo": "not beside `logprobs`",
    "response_format": "as for chat",
    "regex": "extension; the whole answer matches",
    "ebnf": "extension; a grammar with the rule `root`",
    "json_schema": "extension; as an object or as text",
}

_NO_EFFECT = (no_effect("user", "any text", kind=LABEL),)

_REFUSED = refused(
    *("suffix", "messages", "top_logprobs", "tools", "tool_choice", "functions"),
    *("function_call", *UNUSED),
)

COMPLETION_FIELDS = FieldTable(done(_DONE), _NO_EFFECT, _REFUSED, INTERNAL)
"""Every field that is known."""
