"""The public API in OpenAI's words: what is accepted, and how answers are framed."""

from services.gateway.openai.ask import CallRules
from services.gateway.openai.chat import ChatEndpoint, EdgeRules
from services.gateway.openai.models import ModelEndpoint, ModelsEndpoint
from services.gateway.openai.texts import Texts

__all__ = [
    "CallRules",
    "ChatEndpoint",
    "EdgeRules",
    "ModelEndpoint",
    "ModelsEndpoint",
    "Texts",
]
