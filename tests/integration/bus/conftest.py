"""Fixtures of the bus tests, which run on the loop that services use, and some on both."""

from __future__ import annotations

import asyncio

import uvloop

from tests.support.nats import connect, own_nats, shared_nats

__all__ = ["connect", "own_nats", "shared_nats"]

_ON_BOTH_LOOPS = {"test_connect.py", "test_endpoints.py"}
"""Where the loops differ: lost sockets, and the order of callbacks at an end."""


def pytest_asyncio_loop_factories(config, item):
    """Choose the loops of a test."""
    if item.path.name in _ON_BOTH_LOOPS:
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
