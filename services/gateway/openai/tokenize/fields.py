"""The fields of `POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from services.gateway.openai.fields import FieldTable, done

__all__ = ["DETOKENIZE_FIELDS", "TOKENIZE_FIELDS"]

_MODEL = "one of `/v1/models`; may be left out where there is only one"

TOKENIZE_FIELDS = FieldTable(
    done(
        {
            "model": _MODEL,
            "prompt": "a text; this or `messages`",
            "messages": "as for chat; the model's template writes the prompt",
            "add_special_tokens": "of a prompt; default true, as for `/v1/completions`",
            "tools": "as for chat, with `messages`",
            "chat_template_kwargs": "as for chat, with `messages`",
            "reasoning_effort": "as for chat, with `messages`",
            "add_generation_prompt": "as for chat, with `messages`; default true",
            "continue_final_message": "as for chat, with `messages`",
        }
    ),
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
