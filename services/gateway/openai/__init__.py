"""The public API in OpenAI's words: what is accepted, and how answers are framed."""

from services.gateway.openai.chat import ChatApi
from services.gateway.openai.completions import CompletionApi
from services.gateway.openai.endpoint import Api, Endpoint, Seat
from services.gateway.openai.models import ModelEndpoint, ModelsEndpoint
from services.gateway.openai.prompts import ModelDetokenizer, Texts
from services.gateway.openai.responses import ResponseApi
from services.gateway.openai.rules import CallRules, EdgeRules
from services.gateway.openai.tokenize import Detokenizing, Tokenizing, WordEndpoint

__all__ = [
    "Api",
    "CallRules",
    "ChatApi",
    "CompletionApi",
    "Detokenizing",
    "EdgeRules",
    "Endpoint",
    "ModelDetokenizer",
    "ModelEndpoint",
    "ModelsEndpoint",
    "ResponseApi",
    "Seat",
    "Texts",
    "Tokenizing",
    "WordEndpoint",
]
