"""`POST /v1/chat/completions`: what it takes, and how it words its answers."""

from services.gateway.openai.chat.api import ChatApi

__all__ = ["ChatApi"]
