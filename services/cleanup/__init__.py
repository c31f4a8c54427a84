"""Proves that every lease ended, and ends requests whose gateway is gone."""

from services.cleanup.cleanup import CleanupService

__all__ = ["CleanupService"]
