"""`POST /v1/completions`: what it takes, and how it words its answers."""

from services.gateway.openai.completions.api import CompletionApi

__all__ = ["CompletionApi"]
