"""What is only told stands behind what somebody waits for."""

from __future__ import annotations

import asyncio

from services.gateway.later import later


async def test_what_is_told_comes_behind_what_is_sent():
    """Work that this turn of the loop asks for afterwards still comes first; tellers keep order."""
    done: list[str] = []
    loop = asyncio.get_running_loop()
    later(lambda: done.append("first told"))
    later(lambda: done.append("then told"))
    loop.call_soon(done.append, "sent")
    await asyncio.sleep(0.01)
    assert done == ["sent", "first told", "then told"]
