"""`POST /v1/responses`, stateless: what it takes, and how it words its answers and events."""

from services.gateway.openai.responses.api import ResponseApi
from services.gateway.openai.responses.fields import FIELDS

__all__ = ["FIELDS", "ResponseApi"]
