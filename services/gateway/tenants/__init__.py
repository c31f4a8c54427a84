"""Tenants: whose key it is, what it may use, and what is left of that."""

from services.gateway.tenants.directory import Directory
from services.gateway.tenants.door import Door

__all__ = ["Directory", "Door"]
