"""Carrying out calls: the ledger's side of a request, its attempts, its stream, its end."""

from services.gateway.calls.coordinator import Coordinator
from services.gateway.calls.live import LiveCall

__all__ = ["Coordinator", "LiveCall"]
