"""What the bus and store ports promise, said once: run against the simulated and the real bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from libs.bus.api import Bus, Conflict, Endpoint, NoResponders, RequestTimeout, Store
from proto.control import Abort, Aborted, Cancel, InventoryRequest
from proto.errors import ErrorCode, PdbusError
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId
from proto.subjects import ALL_EVENTS

__all__ = ["PROMISES", "Ports"]

RID = RequestId("r" * 26)
_SETTLE_S = 0.25
"""Long enough for anything that was sent to have arrived."""


@dataclass(slots=True)
class Ports:
    """Two processes on one server, a ledger, and a name that no other test uses."""

    one: Bus
    two: Bus
    store: Store[Abort]
    fresh: str

    def subject(self, verb: str) -> str:
        """Return a subject of this test."""
        return f"pdbus.v1.test.{self.fresh}.{verb}"

    async def ask(self, verb: str, attempt: int = 0, timeout_s: float = 1.0) -> Aborted:
        """Ask the second process from the first."""
        message = Abort(rid=RID, attempt=attempt)
        return await self.one.request(self.subject(verb), message, Aborted, timeout_s=timeout_s)

    async def answer(
        self,
        verb: str,
        handler: Callable[[Abort], Awaitable[Aborted]] | Callable[[Abort], Aborted],
        **options: Any,
    ) -> Any:
        """Let the second process answer."""
        return await self.two.serve(Endpoint(verb, self.subject(verb), Abort, handler, **options))


async def a_reply_comes_back(ports: Ports) -> None:
    """A handler's reply reaches the one who asked."""

    async def handle(message: Abort) -> Aborted:
        return Aborted(rid=message.rid)

    await ports.answer("good", handle)
    assert await ports.ask("good") == Aborted(rid=RID)


async def a_refusal_keeps_its_fields(ports: Ports) -> None:
    """A PdbusError of a handler is raised at the caller with all its fields."""

    async def handle(_message: Abort) -> Aborted:
        raise PdbusError(ErrorCode.SATURATED, "full", param="p", retry_after_s=2.5)

    await ports.answer("full", handle)
    with pytest.raises(PdbusError) as refusal:
        await ports.ask("full")
    error = refusal.value
    assert (error.code, error.detail, error.param, error.retry_after_s) == (
        ErrorCode.SATURATED,
        "full",
        "p",
        2.5,
    )


async def a_fault_is_internal(ports: Ports) -> None:
    """Any other exception of a handler is an internal error that says nothing of its text."""

    async def handle(_message: Abort) -> Aborted:
        raise ValueError("secret")

    await ports.answer("bad", handle)
    with pytest.raises(PdbusError) as refusal:
        await ports.ask("bad")
    assert refusal.value.code is ErrorCode.INTERNAL
    assert "secret" not in str(refusal.value)


async def a_plain_handler_does_the_same(ports: Ports) -> None:
    """A handler that never waits replies, refuses and fails as one that may."""

    def handle(message: Abort) -> Aborted:
        match message.attempt:
            case 1:
                raise PdbusError(ErrorCode.SATURATED, "full", param="p", retry_after_s=2.5)
            case 2:
                raise ValueError("secret")
            case _:
                return Aborted(rid=message.rid)

    served = await ports.answer("plain", handle)
    assert await ports.ask("plain") == Aborted(rid=RID)
    with pytest.raises(PdbusError) as refusal:
        await ports.ask("plain", 1)
    error = refusal.value
    assert (error.code, error.detail, error.param, error.retry_after_s) == (
        ErrorCode.SATURATED,
        "full",
        "p",
        2.5,
    )
    with pytest.raises(PdbusError) as refusal:
        await ports.ask("plain", 2)
    assert refusal.value.code is ErrorCode.INTERNAL
    assert "secret" not in str(refusal.value)
    with pytest.raises(PdbusError) as refusal:
        await ports.one.request(ports.subject("plain"), InventoryRequest(), Aborted, timeout_s=1.0)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    await served.close()
    with pytest.raises(NoResponders):
        await ports.ask("plain")


async def nobody_is_told_at_once(ports: Ports) -> None:
    """Without a listener, before it came and after it left, the answer is NoResponders."""

    async def handle(message: Abort) -> Aborted:
        return Aborted(rid=message.rid)

    with pytest.raises(NoResponders):
        await ports.ask("gone")
    served = await ports.answer("gone", handle)
    await ports.ask("gone")
    await served.close()
    with pytest.raises(NoResponders):
        await ports.ask("gone")


async def silence_is_a_timeout(ports: Ports) -> None:
    """A handler that takes too long is a RequestTimeout, and so is no time at all."""

    async def handle(message: Abort) -> Aborted:
        await asyncio.sleep(0.4)
        return Aborted(rid=message.rid)

    await ports.answer("slow", handle)
    with pytest.raises(RequestTimeout):
        await ports.ask("slow", timeout_s=0.1)
    with pytest.raises(RequestTimeout):
        await ports.ask("slow", timeout_s=0.0)
    await asyncio.sleep(0.5)


async def closing_waits_for_handlers(ports: Ports) -> None:
    """Closing an endpoint returns when its handlers have ended, and their replies arrive."""
    ended: list[int] = []

    async def handle(message: Abort) -> Aborted:
        await asyncio.sleep(0.2)
        ended.append(message.attempt)
        return Aborted(rid=message.rid)

    served = await ports.answer("busy", handle)
    asked = asyncio.ensure_future(ports.ask("busy", 7))
    await asyncio.sleep(0.1)
    await served.close()
    assert ended == [7]
    assert (await asked).rid == RID


async def too_many_are_refused(ports: Ports) -> None:
    """Requests beyond an endpoint's concurrency are refused as saturated."""

    async def handle(message: Abort) -> Aborted:
        await asyncio.sleep(0.3)
        return Aborted(rid=message.rid)

    await ports.answer("narrow", handle, concurrency=1)
    first = asyncio.ensure_future(ports.ask("narrow"))
    await asyncio.sleep(0.1)
    with pytest.raises(PdbusError) as refusal:
        await ports.ask("narrow")
    assert refusal.value.code is ErrorCode.SATURATED
    await first


async def a_queue_group_shares(ports: Ports) -> None:
    """Of a queue group one member answers; over many requests every member does."""
    seen: dict[int, int] = {0: 0, 1: 0}

    def handler(number: int) -> Callable[[Abort], Awaitable[Aborted]]:
        async def handle(message: Abort) -> Aborted:
            seen[number] += 1
            return Aborted(rid=message.rid)

        return handle

    for number, bus in enumerate((ports.one, ports.two)):
        subject = ports.subject("shared")
        await bus.serve(Endpoint("shared", subject, Abort, handler(number), "group"))
    for _ in range(40):
        await ports.ask("shared")
    assert sum(seen.values()) == 40
    assert all(seen.values())


async def a_broadcast_reaches_all_in_order(ports: Ports) -> None:
    """Every subscription gets every message of one sender, in order, from its return on."""
    heard: dict[int, list[int]] = {0: [], 1: []}
    subscriptions = [
        await bus.subscribe(
            ports.subject("*"), Cancel, lambda _s, m, n=number: heard[n].append(m.attempt)
        )
        for number, bus in enumerate((ports.one, ports.two))
    ]
    for attempt in range(20):
        await ports.one.publish(ports.subject("news"), Cancel(rid=RID, attempt=attempt))
    await asyncio.sleep(_SETTLE_S)
    assert heard == {0: list(range(20)), 1: list(range(20))}
    for subscription in subscriptions:
        await subscription.close()
    await ports.one.publish(ports.subject("news"), Cancel(rid=RID, attempt=99))
    await asyncio.sleep(_SETTLE_S)
    assert heard[0][-1] == 19


async def nonsense_is_dropped(ports: Ports) -> None:
    """A message of another kind is dropped by a subscription and refused by an endpoint."""
    heard: list[Any] = []

    async def handle(message: Abort) -> Aborted:
        return Aborted(rid=message.rid)

    await ports.two.subscribe(ports.subject("odd"), Cancel, lambda _s, m: heard.append(m))
    await ports.one.publish(ports.subject("odd"), InventoryRequest())
    await ports.one.publish(ports.subject("odd"), Cancel(rid=RID, attempt=1))
    await asyncio.sleep(_SETTLE_S)
    assert heard == [Cancel(rid=RID, attempt=1)]
    await ports.answer("strict", handle)
    with pytest.raises(PdbusError) as refusal:
        await ports.one.request(ports.subject("strict"), InventoryRequest(), Aborted, timeout_s=1.0)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


async def events_are_heard_by_subscribers(ports: Ports) -> None:
    """An emitted event reaches a subscription on the events subject."""
    rid = RequestId(f"{ports.fresh:0>26}")
    heard: list[Event] = []
    event = Event(
        kind=EventKind.LEASE_ENDED,
        rid=rid,
        attempt=0,
        instance=InstanceId("i"),
        at_ms=1.0,
        start_ms=1.0,
    )

    def hear(_subject: str, message: Event) -> None:
        if message.rid == rid:
            heard.append(message)

    await ports.two.subscribe(ALL_EVENTS, Event, hear)
    ports.one.emit(event)
    for _ in range(40):
        await asyncio.sleep(0.1)
        if heard:
            break
    assert heard == [event]


async def records_change_by_compare_and_set(ports: Ports) -> None:
    """A record is created once, updated at its revision only, and read back."""
    store, key = ports.store, "k"
    assert await store.get(key) is None
    first = await store.create(key, Abort(rid=RID, attempt=0))
    with pytest.raises(Conflict):
        await store.create(key, Abort(rid=RID, attempt=1))
    second = await store.update(key, Abort(rid=RID, attempt=2), first)
    assert second > first
    with pytest.raises(Conflict):
        await store.update(key, Abort(rid=RID, attempt=3), first)
    found = await store.get(key)
    assert found is not None
    assert (found.value.attempt, found.revision) == (2, second)
    ninth = await store.create("l", Abort(rid=RID, attempt=9))
    rows = {name: row.value.attempt async for name, row in store.scan()}
    assert rows == {"k": 2, "l": 9}
    assert [row.revision async for _, row in store.scan(found.revision)] == [ninth]
    assert [row async for row in store.scan(ninth)] == []
    third = await store.update(key, Abort(rid=RID, attempt=4), second)
    again = {name: row.revision async for name, row in store.scan(found.revision)}
    assert again == {"k": third, "l": ninth}


PROMISES: tuple[Callable[[Ports], Awaitable[None]], ...] = (
    a_reply_comes_back,
    a_refusal_keeps_its_fields,
    a_fault_is_internal,
    a_plain_handler_does_the_same,
    nobody_is_told_at_once,
    silence_is_a_timeout,
    closing_waits_for_handlers,
    too_many_are_refused,
    a_queue_group_shares,
    a_broadcast_reaches_all_in_order,
    nonsense_is_dropped,
    events_are_heard_by_subscribers,
    records_change_by_compare_and_set,
)
