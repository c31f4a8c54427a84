"""The loop of the chaos programs: uvloop, because all traffic of the proxies passes through it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog
import uvloop

__all__ = ["run_loop"]

ResultT = TypeVar("ResultT")


def run_loop(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run to the end. What our own connections tell of outages is not shown: they are wanted."""
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
