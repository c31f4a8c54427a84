"""What the model is told to say, and when the gateway is idle again."""

from __future__ import annotations

import asyncio
import re

from libs.engine.script.settings import MARKERS
from tests.support.http_client import get

__all__ = ["CALLS", "REASONED", "SLOW_TEXT", "idle", "reaches", "say"]

_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
CALLS = "\n".join(_CALL % city for city in ("Paris", "Rome"))
REASONED = "<think>Six times seven.</think>Forty-two."
SLOW_TEXT = "slow answer"
"""Each token of its answer takes a while."""

_GAUGE = r"^pdbus_gateway_%s_requests(?:\{.*\})? (\S+)$"


def say(text: str) -> str:
    """Return a prompt that makes the model say a text."""
    return f"Please: {MARKERS[0]}{text}{MARKERS[1]}"


async def idle(port: int, within_s: float = 5.0) -> None:
    """Wait until a gateway has no request any more."""
    await reaches(port, "inflight", 0, within_s)


async def reaches(port: int, gauge: str, wanted: int, within_s: float = 5.0) -> None:
    """Wait until so many requests of a gateway are `inflight` or `queued`."""
    pattern = re.compile(_GAUGE % gauge, re.MULTILINE)
    async with asyncio.timeout(within_s):
        while True:
            page = (await get(port, "/metrics")).body.decode()
            values = [float(value) for value in pattern.findall(page)]
            assert values, page[:2000]
            if sum(values) == wanted:
                return
            await asyncio.sleep(0.05)
