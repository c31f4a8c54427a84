"""The fields of `POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from services.gateway.openai.fields import FieldTable, done, no_effect

__all__ = ["DETOKENIZE_FIELDS", "TOKENIZE_FIELDS"]

_ON, _OFF = True, False
_MODEL = "one of `/v1/models`; may be left out where there is only one"

TOKENIZE_FIELDS = FieldTable(
    done(
        {
            "model": _MODEL,
            "prompt": "a text; this or `messages`",
            "messages": "as for chat; the model's template writes the prompt",
            "add_special_tokens": "of a prompt; default true, as for `/v1/completions`",
        }
    ),
    (no_effect("add_generation_prompt", "`true`", _ON),),
)

DETOKENIZE_FIELDS = FieldTable(
    done(
        {
            "model": _MODEL,
            "tokens": "token ids",
            "skip_special_tokens": "default false: nothing is left out",
        }
    ),
)
