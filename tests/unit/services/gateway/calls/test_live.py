"""A running request, as its gateway holds it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from libs.clock import SystemClock
from libs.lifecycle.tasks import Tasks
from proto.ids import RequestId, TenantHash
from proto.sampling import SamplingParams
from services.gateway.api import Call
from services.gateway.calls.live import LiveCall
from services.gateway.prompt import PromptIds


class SilentLedger:
    """Takes records, and does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.known: list[bool] = []

    async def accept(self, call: Call) -> None:
        """Note whether the prompt of a call was known, and wait."""
        self.known.append(call.prompt.known)
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_prompt_is_worked_out_while_the_ledger_answers():
    """The record is on its way before the ids are known, and they are known before it has come."""
    worked = asyncio.Event()

    def work() -> bytes:
        worked.set()
        return bytes(4)

    ledger = SilentLedger()
    async with Tasks() as owner:

        class Ports:
            clock = SystemClock()
            tasks = owner

        ports = cast("Any", Ports())
        ports.ledger = ledger
        call = Call(
            rid=RequestId("a" * 26),
            tenant=TenantHash("t"),
            model="m",
            prompt=PromptIds(work, most=2),
            sampling=SamplingParams(max_tokens=9),
            digest="d",
            deadline_ms=1 << 60,
        )
        live = LiveCall(ports, call, on_over=lambda _: None)
        live.begin()
        async with asyncio.timeout(5):
            await ledger.asked.wait()
            await worked.wait()
    assert ledger.known == [False]
