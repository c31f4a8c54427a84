"""Fixtures of the command line's tests."""

from __future__ import annotations

from tests.support.nats import connect, own_nats, shared_nats

__all__ = ["connect", "own_nats", "shared_nats"]
