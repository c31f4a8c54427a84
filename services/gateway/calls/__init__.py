"""Calls: one request as its gateway holds it, from its first reader to its end."""

from services.gateway.calls.coordinator import CallOwner, Coordinator

__all__ = ["CallOwner", "Coordinator"]
