"""From a request that was read to the calls that carry it out."""

from services.gateway.openai.requests.asking import Asker
from services.gateway.openai.requests.headers import key_of, mode_of
from services.gateway.openai.requests.spread import Prompt, Wish, digest_of, spread

__all__ = [
    "Asker",
    "Prompt",
    "Wish",
    "digest_of",
    "key_of",
    "mode_of",
    "spread",
]
