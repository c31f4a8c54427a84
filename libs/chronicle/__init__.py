"""Telling what happened to a request: one call makes the event, the span and the metric."""

from libs.chronicle.chronicle import Chronicle, Fact

__all__ = ["Chronicle", "Fact"]
