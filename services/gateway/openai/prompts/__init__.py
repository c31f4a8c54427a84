"""From what clients say to token ids, with the tokenizer and template of the model asked."""

from services.gateway.openai.prompts.encode import INLINE_CHARS, encode_prompt
from services.gateway.openai.prompts.texts import ModelDetokenizer, Texts
from services.gateway.openai.prompts.turns import Setting, check_messages, render_chat
from services.gateway.openai.prompts.values import template_values

__all__ = [
    "INLINE_CHARS",
    "ModelDetokenizer",
    "Setting",
    "Texts",
    "check_messages",
    "encode_prompt",
    "render_chat",
    "template_values",
]
