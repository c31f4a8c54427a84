"""Tools that a model may call: checked, chosen from, and forced where the client says so."""

from services.gateway.openai.tools.choosing import Chosen, choose

__all__ = ["Chosen", "choose"]
