"""Answers as server-sent events."""

from services.gateway.openai.frames.api import Frames, Head
from services.gateway.openai.frames.events import DONE, error_frame, frame

__all__ = ["DONE", "Frames", "Head", "error_frame", "frame"]
