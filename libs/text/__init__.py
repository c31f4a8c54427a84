"""Text to tokens: the tokenizer and the chat template of a model folder, without torch."""

from libs.text.digest import TOKENIZER_FILES, tokenizer_digest
from libs.text.errors import ModelTextError, TemplateRefused
from libs.text.model import ModelText
from libs.text.template import ChatTemplate, Turn
from libs.text.tokenizer import Tokenizer

__all__ = [
    "TOKENIZER_FILES",
    "ChatTemplate",
    "ModelText",
    "ModelTextError",
    "TemplateRefused",
    "Tokenizer",
    "Turn",
    "tokenizer_digest",
]
