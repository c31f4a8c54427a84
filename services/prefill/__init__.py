"""Computes the KV of prompts and hands it to whoever asks for the room."""

from services.prefill.prefill import PrefillService

__all__ = ["PrefillService"]
