"""Both sides of an attempt are started at once, and what became of each is known at the end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from libs.bus.api import Bus, NoResponders
from libs.clock import SystemClock
from proto.control import Started
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, Nonce, RequestId, Room, TenantHash
from proto.ledger import Mode, Placement
from proto.prefill import ReplyTo
from proto.router import Plan
from proto.sampling import SamplingParams
from proto.workers import Role, WorkerRef
from services.gateway.api import Call
from services.gateway.attempts.start import AttemptLost, start_both
from services.gateway.prompt import PromptIds


class Sides:
    """A bus with two workers on it, each of which answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.fates: dict[str, asyncio.Future[Exception | None]] = {
            side: asyncio.get_running_loop().create_future() for side in ("decode", "prefill")
        }

    async def request(self, subject: str, *_: Any, **__: Any) -> Started:
        side = "decode" if ".decode." in subject else "prefill"
        self.asked.append(side)
        try:
            fate = await asyncio.shield(self.fates[side])
        finally:
            self.ended.append(side)
        if fate is not None:
            raise fate
        return cast("Started", None)


def worker(role: Role) -> WorkerRef:
    return WorkerRef(
        role=role, instance=InstanceId(f"{role}-00000000"), incarnation=Incarnation("1" * 16)
    )


def starting(sides: Sides) -> asyncio.Task[None]:
    call = Call(
        rid=RequestId("a" * 26),
        tenant=TenantHash("t"),
        model="m",
        prompt=PromptIds(b""),
        sampling=SamplingParams(max_tokens=9),
        digest="d",
        deadline_ms=1 << 60,
    )
    placement = Placement(
        attempt=0,
        mode=Mode.DISAGGREGATED,
        decode=worker(Role.DECODE),
        prefill=worker(Role.PREFILL),
        room=Room("1"),
        compat="c",
    )
    reply = ReplyTo(
        gateway=InstanceId("gateway-000000"), incarnation=Incarnation("9" * 16), nonce=Nonce("n")
    )
    return asyncio.ensure_future(
        start_both(
            bus=cast("Bus", sides),
            clock=SystemClock(),
            call=call,
            plan=Plan(placement=placement, source=None),
            reply=reply,
            offset=0,
        )
    )


async def test_both_are_asked_at_once():
    """Neither side waits for the other, and the start ends when both have answered."""
    sides = Sides()
    task = starting(sides)
    await asyncio.sleep(0.01)
    assert sorted(sides.asked) == ["decode", "prefill"]
    sides.fates["decode"].set_result(None)
    await asyncio.sleep(0.01)
    assert not task.done()
    sides.fates["prefill"].set_result(None)
    await task


@pytest.mark.parametrize("side", ["decode", "prefill"])
async def test_a_side_that_refuses_waits_for_the_other(side: str):
    """A refusal is told when the other side has answered too, so that both can be stopped."""
    sides = Sides()
    task = starting(sides)
    other = "prefill" if side == "decode" else "decode"
    sides.fates[side].set_result(PdbusError(ErrorCode.INVALID_VALUE, side))
    await asyncio.sleep(0.01)
    assert not task.done()
    sides.fates[other].set_result(None)
    with pytest.raises(PdbusError, match=side):
        await task


async def test_of_two_failures_decode_is_told():
    """Where both sides fail, the start fails as decode did, and no failure is forgotten."""
    sides, forgotten = Sides(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: forgotten.append(told))
    task = starting(sides)
    for side, fate in sides.fates.items():
        fate.set_result(NoResponders(side))
    with pytest.raises(AttemptLost) as caught:
        await task
    assert caught.value.code is ErrorCode.DECODE_LOST
    assert sides.asked.count("prefill") == 2
    del task, caught
    gc.collect()
    assert not forgotten


@pytest.mark.parametrize("answered", [(), ("decode",), ("prefill",)])
async def test_a_cancelled_start_leaves_nothing_behind(answered: tuple[str, ...]):
    """Cancelled in any of its waits, it ends at once, and both asks have ended."""
    sides = Sides()
    task = starting(sides)
    await asyncio.sleep(0.01)
    for side in answered:
        sides.fates[side].set_result(None)
    await asyncio.sleep(0.01)
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=1.0)
    assert done
    assert task.cancelled()
    assert sorted(sides.ended) == ["decode", "prefill"]
