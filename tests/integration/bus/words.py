"""Messages and small waits that the bus tests share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from libs.bus import Endpoint
from proto.control import Abort, Aborted
from proto.ids import RequestId

ABORT = Abort(rid=RequestId("r"), attempt=0)
"""Any message will do."""

_fresh = itertools.count()


def fresh(word: str) -> str:
    """Return a name that no other test uses."""
    return f"{word}{next(_fresh)}"


def fresh_subject() -> str:
    """Return a subject that no other test uses."""
    return f"pdbus.v1.decode.{fresh('d')}.i.abort"


async def answer(order: Abort) -> Aborted:
    """Answer an abort."""
    return Aborted(rid=order.rid)


def endpoint(subject: str, handler=answer, **options) -> Endpoint:
    """Return an endpoint for aborts."""
    return Endpoint("abort", subject, Abort, handler, **options)


async def until(true: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)
