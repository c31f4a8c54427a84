"""`POST /tokenize` and `POST /detokenize`: text to token ids and back, as served models have it."""

from services.gateway.openai.tokenize.endpoint import WordEndpoint
from services.gateway.openai.tokenize.fields import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from services.gateway.openai.tokenize.words import Detokenizing, Tokenizing

__all__ = [
    "DETOKENIZE_FIELDS",
    "TOKENIZE_FIELDS",
    "Detokenizing",
    "Tokenizing",
    "WordEndpoint",
]
