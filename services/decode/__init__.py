"""Fetches the KV of prompts (or computes it) and streams answers."""

from services.decode.decode import DecodeService

__all__ = ["DecodeService"]
