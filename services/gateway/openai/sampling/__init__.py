"""From request fields to how answers are drawn."""

from services.gateway.openai.sampling.limits import max_tokens
from services.gateway.openai.sampling.params import (
    Drawing,
    check_drawing,
    check_tokens,
    sampling_of,
)

__all__ = ["Drawing", "check_drawing", "check_tokens", "max_tokens", "sampling_of"]
