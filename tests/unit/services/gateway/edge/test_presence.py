"""Work for a client that may leave, in the task that serves it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proto.errors import ErrorCode, PdbusError
from services.gateway.edge import ClientGone, Exchange, while_present
from services.gateway.edge.connection import Presence
from services.gateway.edge.presence import CLIENT_GONE, SLOW_CLIENT, Pace
from tests.unit.services.gateway.edge.test_server import connect, request, serving, until
from tests.unit.services.gateway.rig import Rig, rules, then_hang

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def exchange_with(presence: Presence) -> Exchange:
    return Exchange(rid="r", request_id="r", started_s=0.0, presence=presence)  # type: ignore[arg-type]


async def no_receive() -> Any:
    raise AssertionError("the connection tells by itself")


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_leaving_ends_the_work_and_not_its_task():
    """The work is cancelled where it waits; the task that ran it goes on, not cancelled."""
    presence = Presence()
    exchange = exchange_with(presence)
    asyncio.get_running_loop().call_soon(presence.leave)
    with pytest.raises(ClientGone):
        await while_present(for_ever(), no_receive, exchange)
    assert exchange.abandoned == CLIENT_GONE
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)


async def test_who_left_before_is_not_worked_for():
    """Work for a client that is gone does not begin."""
    presence = Presence()
    presence.leave()
    begun: list[bool] = []

    async def work() -> None:
        begun.append(True)

    exchange = exchange_with(presence)
    with pytest.raises(ClientGone):
        await while_present(work(), no_receive, exchange)
    assert not begun
    assert exchange.abandoned == CLIENT_GONE


async def test_a_cancellation_from_elsewhere_is_passed_on():
    """The end of the process is not taken for a client that left, even where both come at once."""
    for leaves in (False, True):
        presence = Presence()
        exchange = exchange_with(presence)
        task = asyncio.ensure_future(while_present(for_ever(), no_receive, exchange))
        await asyncio.sleep(0)
        if leaves:
            presence.leave()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()


async def test_a_complete_answer_is_not_cut():
    """A client that hangs up behind the last byte cancels nothing."""
    presence = Presence()
    exchange = exchange_with(presence)

    async def work() -> str:
        exchange.complete = True
        presence.leave()
        await asyncio.sleep(0)
        return "told"

    assert await while_present(work(), no_receive, exchange) == "told"
    assert not exchange.abandoned


async def test_an_outcome_beside_a_departure_stands():
    """Work that ends by itself in spite of its cancellation has its own outcome."""
    presence = Presence()

    async def work() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError as error:
            raise PdbusError(ErrorCode.DRAINING) from error

    asyncio.get_running_loop().call_soon(presence.leave)
    with pytest.raises(PdbusError):
        await while_present(work(), no_receive, exchange_with(presence))
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_slow_client_ends_the_work():
    """What watches the pace begins after its time, and its return ends the work."""
    exchange = exchange_with(Presence())

    async def at_once() -> None:
        return

    with pytest.raises(ClientGone):
        await while_present(for_ever(), no_receive, exchange, Pace(0.01, at_once))
    assert exchange.abandoned == SLOW_CLIENT


async def test_a_fault_of_the_watch_is_told():
    """A watch that fails ends the work with its own exception."""
    exchange = exchange_with(Presence())

    async def fails() -> None:
        raise OSError("no pulse")

    with pytest.raises(OSError, match="no pulse"):
        await while_present(for_ever(), no_receive, exchange, Pace(0.01, fails))


async def test_an_answer_is_one_task(rig: Rig):
    """No task beside the one that serves an exchange watches its client."""
    rig.calls.script = then_hang("Hello")
    async with serving(rig) as server:
        before = asyncio.all_tasks()
        reader, writer = await connect(server)
        writer.write(request(stream=True))
        await reader.readuntil(b"Hello")
        served = asyncio.all_tasks() - before
        assert len(served) == 1
        writer.transport.abort()
        await asyncio.wait(served)


async def test_leaving_behind_a_large_body_is_noticed(rig: Rig):
    """A body that stopped the connection from reading on does not hide its end."""
    rig.calls.script = then_hang("Hello")
    rig.rules = rules(max_body_bytes=1_000_000)
    async with serving(rig) as server:
        reader, writer = await connect(server)
        whole = request(stream=True)
        head, _, body = whole.partition(b"\r\n\r\n")
        padded = body + b" " * 200_000
        length = b"content-length: %d" % len(body)
        head = head.replace(length, b"content-length: %d" % len(padded))
        writer.write(head + b"\r\n\r\n" + padded)
        await reader.readuntil(b"Hello")
        writer.close()
        await until(lambda: rig.calls.lives[0].cancels, within_s=1.0)
