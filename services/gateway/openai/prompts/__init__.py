"""From what clients say to token ids, with the tokenizer and template of the model asked."""

from services.gateway.openai.prompts.encode import INLINE_CHARS, encode_prompt
from services.gateway.openai.prompts.texts import ModelDetokenizer, Texts
from services.gateway.openai.prompts.turns import render_chat

__all__ = ["INLINE_CHARS", "ModelDetokenizer", "Texts", "encode_prompt", "render_chat"]
