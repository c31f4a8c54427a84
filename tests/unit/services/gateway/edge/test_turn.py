"""What is written within one turn of the loop leaves together at its end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from services.gateway.edge.connection import Body
from services.gateway.edge.turn import Outbound, Turn
from tests.unit.services.gateway.edge.test_server import connect
from tests.unit.services.gateway.edge.test_writes import GET, START, body_of, part, served


class Wire:
    """A transport that notes what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def outbound(wire: Wire, turn: Turn) -> Outbound:
    return Outbound(cast("asyncio.Transport", wire), turn)


async def test_one_write_a_connection_and_turn():
    """Parts of one turn are one write to each connection, in order; the next turn has its own."""
    turn = Turn()
    wires = Wire(), Wire()
    ways = [outbound(wire, turn) for wire in wires]
    for number in (b"1", b"2"):
        for way in ways:
            way.write(number)
    assert not wires[0].written
    await asyncio.sleep(0)
    ways[0].write(b"3")
    await asyncio.sleep(0)
    assert [wire.written for wire in wires] == [[b"12", b"3"], [b"12"]]


async def test_much_does_not_wait_for_the_turn():
    """Who writes without ever pausing holds at most a bounded part back."""
    wire = Wire()
    way = outbound(wire, Turn())
    for _ in range(100):
        way.write(b"x" * 10_000)
    assert sum(map(len, wire.written)) > 1_000_000 - 80_000
    await asyncio.sleep(0)
    assert sum(map(len, wire.written)) == 1_000_000


async def test_nothing_is_written_to_a_lost_connection():
    """What a client that has left was to get is dropped without a fault, and others get theirs."""
    turn = Turn()
    lost, kept = Wire(), Wire()
    ways = outbound(lost, turn), outbound(kept, turn)
    for way in ways:
        way.write(b"x")
    lost.closing = True
    await asyncio.sleep(0)
    assert (lost.written, kept.written) == ([], [b"x"])


async def test_closing_writes_first():
    """The end of an answer on a connection that closes behind it is not lost."""
    wire = Wire()
    way = outbound(wire, Turn())
    way.write(b"end")
    way.close()
    assert wire.written == [b"end"]
    assert way.is_closing()


async def test_head_and_first_event_are_one_segment():
    """A client that is woken by the head finds the first event with it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body: Body = scope["pdbus.body"]
        await send(START)
        body.write(b"first")
        await asyncio.sleep(0.05)
        await send(part(b"", more=False))

    async with served(app) as server:
        reader, writer = await connect(server)
        writer.write(GET)
        assert (await reader.read(65_536)).endswith(b"\r\n\r\n5\r\nfirst\r\n")
        writer.close()


async def test_an_answer_that_is_complete_survives_the_end_of_the_server():
    """A server that stops in the turn in which an answer ended has written all of it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"whole", more=False))
        for connection in tuple(connections):
            connection.shutdown()

    async with served(app) as server:
        connections: set[Any] = server._server.server_state.connections  # type: ignore[reportPrivateUsage]
        reader, writer = await connect(server)
        writer.write(GET)
        assert await body_of(reader) == b"whole"
        assert await reader.read() == b""
        writer.close()
