"""What is said within one turn of the loop leaves as one message a gateway, in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from structlog.testing import capture_logs

from libs.bus.api import Bus, BusDown, TooLarge
from libs.chronicle import Chronicle
from libs.clock import SystemClock
from libs.lifecycle import Tasks
from libs.worker.attempt import Attempt
from libs.worker.speaker import Speaker
from proto.base import decode, encode
from proto.gateway import StreamBatch, StreamMessage, TokenChunk
from proto.ids import Incarnation, InstanceId, Nonce, RequestId
from proto.prefill import ReplyTo
from proto.subjects import template
from proto.workers import Role


class Wire:
    """Remembers what was published."""

    def __init__(self, most_items: int = 10_000) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.down = False
        self.lags = False
        self.breaks = False
        self._most = most_items

    async def publish(self, subject: str, message: Any) -> None:
        await asyncio.sleep(0)
        self.lags = False
        assert self.post(subject, message)

    def post(self, subject: str, message: Any) -> bool:
        if self.down:
            raise BusDown("away")
        if isinstance(message, StreamBatch) and len(message.items) > self._most:
            raise TooLarge("too many")
        assert template(subject)
        if self.lags:
            return False
        if self.breaks:
            self.breaks = False
            raise ValueError("a fault of ours")
        self.sent.append((subject, decode(encode(message), StreamMessage | StreamBatch)))
        return True


def reply(number: int, gateway: str = "1") -> ReplyTo:
    return ReplyTo(
        gateway=InstanceId("gateway-" + gateway),
        incarnation=Incarnation(gateway * 16),
        nonce=Nonce(f"{number:032x}"),
    )


def attempt(number: int, gateway: str = "1") -> Attempt:
    rid = RequestId(f"{number:026d}")
    return Attempt(rid=rid, number=0, reply=reply(number, gateway), started_ms=0.0, started_s=0.0)


def chunk(offset: int) -> TokenChunk:
    return TokenChunk(attempt=0, offset=offset, ids=b"\1\0\0\0", text=f"t{offset}")


def speaker(wire: Wire, tasks: Tasks) -> Speaker:
    return Speaker(
        bus=cast(Bus, wire),
        clock=SystemClock(),
        chronicle=cast(Chronicle, None),
        role=Role.DECODE,
        tasks=tasks,
    )


async def left(says: Speaker) -> None:
    """Wait until all that was said has left."""
    async with asyncio.timeout(5):
        while not says.silent:
            await asyncio.sleep(0)


async def test_a_step_is_one_message():
    """Tokens of many attempts for one gateway travel together, each under its own nonce."""
    wire = Wire()
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        attempts = [attempt(number) for number in range(40)]
        for each in attempts:
            says.say(each, chunk(3))
        await left(says)
    ((subject, batch),) = wire.sent
    assert subject.endswith(".batch")
    assert [nonce for nonce, _ in batch.items] == [each.reply.nonce for each in attempts]
    assert {part.text for _, part in batch.items} == {"t3"}


async def test_a_single_word_travels_alone():
    """With nothing beside it a message goes to its own subject, as ever."""
    wire = Wire()
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        for offset in range(3):
            says.say(attempt(1), chunk(offset))
            await left(says)
    assert [subject.rpartition(".")[2] for subject, _ in wire.sent] == [reply(1).nonce] * 3
    assert [part.offset for _, part in wire.sent] == [0, 1, 2]


async def test_gateways_hear_only_what_is_theirs():
    """Each gateway gets one message, and all readers of an attempt are told."""
    wire = Wire()
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        both = attempt(1)
        both.listen(reply(2, "2"))
        says.say(both, chunk(0))
        says.say(attempt(3), chunk(7))
        says.say(attempt(4, "2"), chunk(9))
        await left(says)
    heard = {subject.split(".")[3]: message for subject, message in wire.sent}
    assert {name: [p.offset for _, p in m.items] for name, m in heard.items()} == {
        "gateway-1": [0, 7],
        "gateway-2": [0, 9],
    }


async def test_order_is_kept_across_batches():
    """What is said while a batch leaves follows it."""
    wire = Wire()
    async with Tasks() as tasks:
        says, one, other = speaker(wire, tasks), attempt(1), attempt(2)
        for offset in range(200):
            says.say(one, chunk(offset))
            says.say(other, chunk(offset))
            if offset % 3 == 0:
                await asyncio.sleep(0)
        await left(says)
    assert len(wire.sent) > 1
    parts = [part for _, message in wire.sent for part in message.items]
    for each in (one, other):
        mine = [part.offset for nonce, part in parts if nonce == each.reply.nonce]
        assert mine == list(range(200))


async def test_what_has_to_wait_keeps_its_place():
    """Where the bus lags behind, it is waited for, and nothing that is said later overtakes."""
    wire = Wire()
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        both = attempt(1)
        both.listen(reply(2, "2"))
        for offset in range(60):
            wire.lags = wire.lags or offset % 4 == 0
            says.say(both, chunk(offset))
            await asyncio.sleep(0.0006)
        await left(says)
    for each in both.listeners:
        parts = [
            part.offset
            for subject, message in wire.sent
            for nonce, part in getattr(message, "items", [(subject.rpartition(".")[2], message)])
            if nonce == each
        ]
        assert parts == list(range(60))


async def test_a_fault_costs_one_message():
    """It is told, and what is said to that gateway and to others later is heard."""
    wire = Wire()
    async with Tasks() as tasks:
        says, one = speaker(wire, tasks), attempt(1)
        one.listen(reply(2, "2"))
        wire.breaks = True
        with capture_logs() as logs:
            for offset in range(3):
                says.say(one, chunk(offset))
                await left(says)
                await asyncio.sleep(0.002)
    assert [(line["event"], line["task"]) for line in logs] == [("task failed", "speak")]
    heard = sorted((subject.split(".")[3], message.offset) for subject, message in wire.sent)
    every = [(f"gateway-{gateway}", offset) for gateway in (1, 2) for offset in range(3)]
    (lost,) = set(every) - set(heard)
    assert lost[1] == 0
    assert len(heard) == len(every) - 1


async def test_what_does_not_fit_together_travels_alone():
    """Messages too large for one batch are sent one by one, and nothing is lost."""
    wire = Wire(most_items=3)
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        for number in range(5):
            says.say(attempt(number), chunk(number))
        await left(says)
    assert [part.offset for _, part in wire.sent] == [0, 1, 2, 3, 4]


async def test_a_bus_that_is_away_loses_what_was_said_and_no_more():
    """Nothing is kept for later: whoever follows asks for it again."""
    wire = Wire()
    async with Tasks() as tasks:
        says = speaker(wire, tasks)
        wire.down = True
        says.say(attempt(1), chunk(0))
        says.say(attempt(2), chunk(0))
        await left(says)
        wire.down = False
        says.say(attempt(1), chunk(1))
        await left(says)
    assert [part.offset for _, part in wire.sent] == [1]


async def test_haste_makes_larger_messages():
    """An engine that speaks without a pause is told of once a millisecond, and nothing is lost."""
    wire = Wire()
    async with Tasks() as tasks:
        says, one = speaker(wire, tasks), attempt(1)
        for offset in range(2000):
            says.say(one, chunk(offset))
            await asyncio.sleep(0)
        await left(says)
    parts = [
        part
        for _, message in wire.sent
        for part in ([p for _, p in message.items] if hasattr(message, "items") else [message])
    ]
    assert [part.offset for part in parts] == list(range(2000))
    assert len(wire.sent) < 1000
