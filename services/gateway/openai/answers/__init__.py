"""From calls to one answer: carried out side by side, gathered or streamed, counted."""

from services.gateway.openai.answers.asked import Asked, Shape
from services.gateway.openai.answers.giving import Giving
from services.gateway.openai.answers.said import Said, SaidCall

__all__ = ["Asked", "Giving", "Said", "SaidCall", "Shape"]
