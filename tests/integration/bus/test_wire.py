"""Faults of nats-py that would end a connection, and that ours survives."""

from __future__ import annotations

import asyncio
import contextlib

import nats
import pytest
import uvloop
from nats import errors

from libs.bus import BusSettings
from libs.bus.api import BusDown
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.clock import SystemClock
from proto.base import decode
from proto.control import Aborted
from tests.integration.bus.words import ABORT, endpoint, fresh_subject, until

pytestmark = pytest.mark.integration

INFO = (
    b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":4194304,"proto":1}\r\n'
)


async def test_an_oversized_message_costs_a_reconnect_and_not_the_client(own_nats, connect):
    """The server answers with an error line and cuts; nats-py alone closes for good then."""
    bus, other = await connect(own_nats), await connect(own_nats)
    subject = fresh_subject()
    await bus.serve(endpoint(subject))
    client = bus.link.client
    # Past our own guard: headers on top of a payload of the largest size.
    await client.publish("x", b"x" * client.max_payload, headers={"a": "b"})
    await until(lambda: client.stats["reconnects"] == 1 and bus.connected)
    await bus.link.barrier()
    assert await other.request(subject, ABORT, Aborted, timeout_s=2)


async def test_a_cancelled_flush_does_not_make_the_client_deaf(own_nats, connect):
    """Its pong comes later; nats-py alone ends its read loop on it, and all replies time out."""
    bus = await connect(own_nats)
    subject = fresh_subject()
    await bus.serve(endpoint(subject))
    flush = asyncio.ensure_future(bus.link.client.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flush.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await flush
    for _ in range(3):
        assert await bus.request(subject, ABORT, Aborted, timeout_s=1)
    assert bus.link.client.stats["reconnects"] == 0


async def test_a_read_loop_that_ends_is_replaced_at_once(own_nats, connect):
    """A fault inside nats-py's read loop costs a reconnect, not seconds of silence."""
    bus = await connect(own_nats, ping_interval_s=60)
    subject = fresh_subject()
    await bus.serve(endpoint(subject))

    parser = bus.link.client._ps

    async def break_once(*_args):
        del parser.parse
        raise KeyError("a fault inside the parser")

    parser.parse = break_once
    await bus.publish(subject, ABORT)
    await until(lambda: bus.link.client.stats["reconnects"] == 1 and bus.connected)
    assert await bus.request(subject, ABORT, Aborted, timeout_s=1)


async def test_a_cancellation_that_nobody_asked_for_ends_neither_client_nor_caller(
    own_nats, connect
):
    """Waiting for a lost socket can raise CancelledError, from a future that nats-py cancelled.

    It happened when a connection was closed just after its server had died: the drain ended there.
    """
    bus, other = await connect(own_nats), await connect(own_nats)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    bus.link.client._transport.wait_closed = cancelled
    other.link.client._transport.wait_closed = cancelled
    own_nats.kill()
    await until(lambda: not bus.connected and not other.connected)
    await own_nats.start()
    await until(lambda: bus.connected and other.connected)
    other.link.client._transport.wait_closed = cancelled
    assert await other.drain(1) is True


async def test_a_real_cancellation_of_a_close_is_passed_on(own_nats, connect):
    """Whoever is cancelled while closing hears of it."""
    bus = await connect(own_nats)

    async def never() -> None:
        await asyncio.Event().wait()

    bus.link.client._transport.wait_closed = never
    closing = asyncio.ensure_future(bus.link.client.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


@pytest.mark.parametrize("ends", ["request", "flush"])
async def test_a_cancellation_beside_the_answer_is_obeyed(own_nats, connect, ends: str):
    """A task that is cancelled in the turn in which its answer comes is cancelled all the same.

    nats-py waits with `asyncio.wait_for`, which returns the answer then (before Python 3.12).
    """
    bus = await connect(own_nats)
    client = bus.link.client
    await client.ask("$SRV.PING", b"", None, 2)
    own_nats.pause()
    asking = client.ask("$SRV.PING", b"", None, 30) if ends == "request" else client.flush(30)
    task = asyncio.ensure_future(asking)
    await until(lambda: client._asked if ends == "request" else client._pongs)
    (future,) = [answer for answer, _ in client._asked.values()] or client._pongs
    future.set_result(Delivery("", "", b"") if ends == "request" else True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    own_nats.resume()


async def test_questions_end_when_their_own_time_is_over(own_nats, connect):
    """Of several that wait, each ends for itself, and none before its time."""
    bus = await connect(own_nats)
    client = bus.link.client
    await client.ask("$SRV.PING", b"", None, 2)
    own_nats.pause()
    loop = asyncio.get_running_loop()

    async def ask(timeout_s: float) -> float:
        began_s = loop.time()
        with pytest.raises(errors.TimeoutError):
            await client.ask("$SRV.PING", b"", None, timeout_s)
        return loop.time() - began_s

    try:
        long, short = await asyncio.gather(ask(0.6), ask(0.1))
        again = await ask(0.1)
    finally:
        own_nats.resume()
    assert short >= 0.1
    assert again >= 0.1
    assert long >= 0.6
    assert not client._asked


async def test_headers_keep_their_case(shared_nats):
    """nats-py hands headers over as a plain dict: names are written and read in one exact case."""
    raw = await nats.connect(shared_nats.url)
    heard = await raw.subscribe("case.test")
    await raw.publish("case.test", b"", headers={"traceparent": "x"})
    headers = (await heard.next_msg(timeout=2)).headers
    await raw.close()
    assert "traceparent" in headers
    assert "Traceparent" not in headers


@pytest.mark.parametrize(
    "greeting",
    [INFO, b"INFO \r\n", b"INFO{}\r\n", b"INFO " + b"x" * 100_000, b"garbage\r\n", b""],
    ids=["half", "empty", "malformed", "endless", "foreign", "silent"],
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_server_that_hangs_up_is_tried_again(loop, greeting):
    """Half a handshake, malformed or cut, does not end the task that reconnects."""
    run = asyncio.run if loop == "asyncio" else uvloop.run
    run(_survive(greeting))


async def _survive(greeting: bytes) -> None:
    state = {"good": True, "bad": 0}
    serving: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        if state["good"]:
            writer.write(INFO)
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    if line.startswith(b"PING"):
                        writer.write(b"PONG\r\n")
                    if not state["good"]:
                        break
        else:
            state["bad"] += 1
            writer.write(greeting)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = BusSettings(
        urls=(f"nats://127.0.0.1:{port}",), reconnect_wait_s=0.005, ping_interval_s=0.1
    )
    link = Link(settings, name="t", inbox="_INBOX.t", clock=SystemClock())
    await link.open()
    state["good"] = False
    await link.publish("x", b"")
    await until(lambda: state["bad"] >= 3)
    assert not link.client.is_closed
    state["good"] = True
    await until(lambda: link.connected)
    await link.close()
    server.close()
    await asyncio.wait(serving, timeout=2)
    assert len(asyncio.all_tasks()) == 1


async def test_messages_do_not_wake_the_read_loop(own_nats, connect):
    """Handlers are called where the socket is read, on the next connection too, in order."""
    bus, other = await connect(own_nats), await connect(own_nats)
    subject, heard, parsed = fresh_subject(), [], []
    client = bus.link.client
    await bus.link.listen(subject, lambda message: heard.append(message.data))
    parse = client._ps.parse

    async def spy(data=b""):
        parsed.append(bytes(data))
        await parse(data)

    client._ps.parse = spy
    for turn in range(2):
        for number in range(20):
            other.link.post(subject, b"%d" % (20 * turn + number))
        await until(lambda turn=turn: len(heard) == 20 * (turn + 1))
        if not turn:
            await client.force_reconnect()
            await until(lambda: client.stats["reconnects"] == 1 and bus.connected)
            await bus.link.barrier()
    assert heard == [b"%d" % number for number in range(40)]
    # Together with an answer to a ping the loop may get some.
    assert sum(data.count(b"MSG ") for data in parsed) < 20


async def test_a_message_does_not_overtake_a_command(own_nats, connect):
    """What is published in one turn with a subscription of its own comes back to it."""
    bus = await connect(own_nats)
    subject, heard = fresh_subject(), []
    await bus.link.client.hear(subject, "", heard.append)
    for number in range(3):
        assert bus.post(subject, Aborted(rid=str(number), leases=()))
    await until(lambda: len(heard) == 3)
    assert [decode(message.data, Aborted).rid for message in heard] == ["0", "1", "2"]


async def test_nothing_is_posted_where_the_server_lags(own_nats, connect):
    """Who posts is told to publish instead, which waits; without a connection both raise."""
    bus = await connect(own_nats)
    client = bus.link.client
    message = Aborted(rid="1", leases=())
    client._pending_data_size = 9 << 20
    assert not bus.post(fresh_subject(), message)
    client._pending_data_size = 0
    assert bus.post(fresh_subject(), message)
    own_nats.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(BusDown):
        bus.post(fresh_subject(), message)


async def test_a_fault_of_a_handler_is_told_at_once_and_costs_one_message(own_nats, connect):
    """It does not wait for the next thing that the server says, and the connection goes on."""
    bus, other = await connect(own_nats), await connect(own_nats)
    subject, heard, faults = fresh_subject(), [], []
    client = bus.link.client

    async def complain(error):
        faults.append(error)

    client._error_cb = complain

    def handle(message):
        if message.data == b"fault":
            raise KeyError("a fault inside a handler")
        heard.append(message.data)

    await bus.link.listen(subject, handle)
    other.link.post(subject, b"fault")
    await until(lambda: faults, within_s=1.0)
    for data in (b"fault", b"a", b"b"):
        other.link.post(subject, data)
    await until(lambda: len(heard) == 2)
    assert heard == [b"a", b"b"]
    assert [type(fault) for fault in faults] == [KeyError, KeyError]
    assert client.stats["reconnects"] == 0
