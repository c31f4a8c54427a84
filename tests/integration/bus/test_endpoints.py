"""Serving requests on a real server."""

from __future__ import annotations

import asyncio

import nats
import pytest

from libs.bus import BusError, Endpoint, NatsBus, NoResponders, RequestTimeout
from libs.telemetry import names, span, trace_id
from proto.base import decode, encode
from proto.control import Abort, Aborted
from proto.errors import ERRORS, ErrorCode, ErrorReply, PdbusError
from proto.subjects import template
from tests.integration.bus.words import ABORT, answer, endpoint, fresh_subject, until

pytestmark = pytest.mark.integration

SECRET = "the secret of a handler"


async def test_handlers_of_one_endpoint_run_concurrently(shared_nats, connect):
    """Five requests meet inside the handler; nats-py's own services handle one at a time."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    meeting = asyncio.Barrier(5)

    async def meet(order: Abort) -> Aborted:
        await meeting.wait()
        return await answer(order)

    subject = fresh_subject()
    await server.serve(endpoint(subject, meet))
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(caller.request(subject, ABORT, Aborted, timeout_s=5))


async def test_a_plain_handler_costs_no_task(shared_nats, connect, spans):
    """A handler that never waits runs where its request is read, within the caller's trace."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    seen = []

    def note(order: Abort) -> Aborted:
        seen.append((trace_id(), [task.get_name() for task in asyncio.all_tasks()]))
        return Aborted(rid=order.rid)

    subject = fresh_subject()
    served = await server.serve(endpoint(subject, note))
    with span("asking"):
        mine = trace_id()
        assert await caller.request(subject, ABORT, Aborted, timeout_s=2) == Aborted(rid=ABORT.rid)
    ((trace, tasks),) = seen
    assert trace == mine
    assert "serve abort" not in tasks
    assert (served.num_requests, served.num_errors, served.inflight) == (1, 0, 0)
    assert served.processing_ns > 0
    processed = [each for each in spans.get_finished_spans() if each.name.startswith("process")]
    assert [f"{each.context.trace_id:032x}" for each in processed] == [mine]


async def test_a_plain_handler_keeps_no_drain_waiting(shared_nats, connect):
    """All that was asked before the drain is answered, and nothing is left to wait for."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    subject = fresh_subject()
    served = await server.serve(endpoint(subject, lambda order: Aborted(rid=order.rid)))
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(caller.request(subject, ABORT, Aborted, timeout_s=5))
            for _ in range(10)
        ]
        await until(lambda: served.num_requests == 10)
        assert await served.idle(0)
        assert await server.drain(5)
    assert [task.result() for task in asked] == [Aborted(rid=ABORT.rid)] * 10


async def test_over_its_limit_an_endpoint_refuses_at_once(shared_nats, connect, metric):
    """More requests than handlers are refused as saturated, and the next one is served again."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    release = asyncio.Event()

    async def hold(order: Abort) -> Aborted:
        await release.wait()
        return await answer(order)

    subject = fresh_subject()
    label = template(subject)
    before = metric(names.BUS_REFUSED.name, template=label)
    served = await server.serve(endpoint(subject, hold, concurrency=2))
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(caller.request(subject, ABORT, Aborted, timeout_s=5))
        await until(lambda: served.inflight == 2)
        with pytest.raises(PdbusError) as caught:
            await caller.request(subject, ABORT, Aborted, timeout_s=5)
        release.set()
    assert caught.value.code is ErrorCode.SATURATED
    assert metric(names.BUS_REFUSED.name, template=label) == before + 1
    await until(lambda: served.inflight == 0)
    assert await caller.request(subject, ABORT, Aborted, timeout_s=5)


async def test_the_text_of_a_fault_never_leaves_the_process(shared_nats, connect, metric):
    """A handler that breaks gives a typed reply with public words, in body and headers."""
    server = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)

    async def broken(_order: Abort) -> Aborted:
        raise RuntimeError(SECRET)

    subject = fresh_subject()
    label = template(subject)
    before = metric(names.BUS_HANDLER_ERRORS.name, template=label)
    served = await server.serve(endpoint(subject, broken))
    msg = await raw.request(subject, encode(ABORT), timeout=2)
    await raw.close()
    assert decode(msg.data, ErrorReply) == ErrorReply(code=ErrorCode.INTERNAL)
    assert msg.headers == {
        "Nats-Service-Error": ERRORS[ErrorCode.INTERNAL].text,
        "Nats-Service-Error-Code": "500",
    }
    assert SECRET not in str(msg)
    assert SECRET not in served.last_error
    assert metric(names.BUS_HANDLER_ERRORS.name, template=label) == before + 1


async def test_a_refusal_has_the_service_error_headers(shared_nats, connect):
    """A refusal with a code tells it in the headers that stock NATS tools read."""
    server = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)

    async def refuse(_order: Abort) -> Aborted:
        raise PdbusError(ErrorCode.NO_WORKER, SECRET)

    subject = fresh_subject()
    await server.serve(endpoint(subject, refuse))
    msg = await raw.request(subject, encode(ABORT), timeout=2)
    await raw.close()
    assert msg.headers == {
        "Nats-Service-Error": ERRORS[ErrorCode.NO_WORKER].text,
        "Nats-Service-Error-Code": "503",
    }
    assert decode(msg.data, ErrorReply).code is ErrorCode.NO_WORKER


async def test_a_request_that_cannot_be_read_is_refused_as_invalid(shared_nats, connect, metric):
    """A stranger's bytes get an answer, and never reach the handler."""
    server = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)
    reached = []

    async def note(order: Abort) -> Aborted:
        reached.append(order)
        return await answer(order)

    subject = fresh_subject()
    label = template(subject)
    before = metric(names.BUS_DECODE_ERRORS.name, template=label)
    await server.serve(endpoint(subject, note))
    msg = await raw.request(subject, b"\xff", timeout=2)
    await raw.close()
    assert decode(msg.data, ErrorReply) == ErrorReply(code=ErrorCode.INVALID_REQUEST)
    assert not reached
    assert metric(names.BUS_DECODE_ERRORS.name, template=label) == before + 1


async def test_a_queue_group_answers_once_and_no_group_answers_from_all(shared_nats, connect):
    """With a group one member works; without one all do, which nats-py does not offer."""
    one, two, caller = [await connect(shared_nats) for _ in range(3)]
    worked = []

    def handler_of(bus):
        async def work(order: Abort) -> Aborted:
            worked.append(bus)
            return await answer(order)

        return work

    grouped, alone = fresh_subject(), fresh_subject()
    for bus in (one, two):
        await bus.serve(endpoint(grouped, handler_of(bus), queue="router"))
        await bus.serve(endpoint(alone, handler_of(bus)))
    for _ in range(20):
        await caller.request(grouped, ABORT, Aborted, timeout_s=2)
    assert len(worked) == 20
    worked.clear()
    await caller.request(alone, ABORT, Aborted, timeout_s=2)
    await until(lambda: len(worked) == 2)
    assert set(worked) == {one, two}


async def test_close_returns_when_the_last_handler_has_answered(shared_nats, connect):
    """An endpoint that closes answers what it had taken, and takes no more."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    release = asyncio.Event()

    async def hold(order: Abort) -> Aborted:
        await release.wait()
        return await answer(order)

    subject = fresh_subject()
    served = await server.serve(endpoint(subject, hold))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(caller.request(subject, ABORT, Aborted, timeout_s=5))
        await until(lambda: served.inflight == 1)
        closing = group.create_task(served.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        with pytest.raises(NoResponders):
            await caller.request(subject, ABORT, Aborted, timeout_s=5)
        release.set()
    assert asked.result() == Aborted(rid=ABORT.rid)
    assert served.inflight == 0


async def test_closing_in_a_storm_of_requests_answers_every_one_it_took(shared_nats, connect):
    """Each request is answered, or was certainly not received: none runs into its deadline.

    nats-py's own drain lost some: its ping overtakes the UNSUB.
    """
    server, caller = await connect(shared_nats), await connect(shared_nats)
    for _ in range(10):
        subject = fresh_subject()
        served = await server.serve(endpoint(subject))

        async def storm(subject: str = subject) -> int:
            replies = 0
            while True:
                try:
                    await caller.request(subject, ABORT, Aborted, timeout_s=2)
                except NoResponders:
                    return replies
                replies += 1

        async with asyncio.TaskGroup() as group:
            storms = [group.create_task(storm()) for _ in range(8)]
            while served.num_requests < 20:
                await asyncio.sleep(0.001)
            await served.close()
        assert sum(task.result() for task in storms) == served.num_requests


async def test_drain_waits_for_handlers_and_their_requests(shared_nats, connect):
    """Work in flight ends in order: the handler, what it asks others, and its reply.

    nats-py's drain forgets spawned tasks and cuts the inbox of outgoing requests first.
    """
    server, helper, caller = [await connect(shared_nats) for _ in range(3)]
    release = asyncio.Event()

    async def help_slowly(order: Abort) -> Aborted:
        await release.wait()
        return await answer(order)

    front, back = fresh_subject(), fresh_subject()

    async def pass_on(order: Abort) -> Aborted:
        return await server.request(back, order, Aborted, timeout_s=5)

    await helper.serve(endpoint(back, help_slowly))
    served = await server.serve(endpoint(front, pass_on))
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(caller.request(front, ABORT, Aborted, timeout_s=5)) for _ in range(10)
        ]
        await until(lambda: served.inflight == 10)
        draining = group.create_task(server.drain(5))
        await asyncio.sleep(0.1)
        assert not draining.done()
        release.set()
    assert draining.result() is True
    assert [task.result() for task in asked] == [Aborted(rid=ABORT.rid)] * 10
    assert not server.connected


async def test_drain_waits_for_the_replies_to_our_own_requests(shared_nats, connect):
    """A request that is under way when the drain begins still gets its answer."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    release = asyncio.Event()

    async def hold(order: Abort) -> Aborted:
        await release.wait()
        return await answer(order)

    subject = fresh_subject()
    served = await server.serve(endpoint(subject, hold))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(caller.request(subject, ABORT, Aborted, timeout_s=5))
        await until(lambda: served.inflight == 1)
        draining = group.create_task(caller.drain(5))
        await asyncio.sleep(0.1)
        release.set()
    assert draining.result() is True
    assert asked.result() == Aborted(rid=ABORT.rid)


async def test_an_endpoint_closed_over_a_reconnect_leaves_its_group(own_nats, connect):
    """A member that left while the server restarted gets no requests any more.

    The subscription is repeated on the new connection; it would swallow its share for ever.
    """
    leaver = await connect(own_nats, ping_interval_s=60, barrier_timeout_s=1)
    stayer, caller = await connect(own_nats), await connect(own_nats)
    subject = fresh_subject()
    leaving = await leaver.serve(endpoint(subject, queue="router"))
    await stayer.serve(endpoint(subject, queue="router"))
    own_nats.pause()
    async with asyncio.TaskGroup() as group:
        group.create_task(leaving.close())
        await asyncio.sleep(0.05)
        own_nats.kill()
        await own_nats.start()
    await until(lambda: all(bus.connected for bus in (leaver, stayer, caller)))
    await leaver.link.barrier()
    await stayer.link.barrier()
    for _ in range(20):
        await caller.request(subject, ABORT, Aborted, timeout_s=1)


async def test_drain_gives_up_on_a_handler_that_never_ends(shared_nats, connect):
    """The grace is kept: drain returns False, and the connection is closed all the same."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    subject = fresh_subject()

    async def stuck(_order: Abort) -> Aborted:
        await asyncio.Event().wait()
        raise AssertionError

    served = await server.serve(endpoint(subject, stuck))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(_outcome(caller, subject))
        await until(lambda: served.inflight == 1)
        assert await server.drain(0.2) is False
    assert asked.result() is RequestTimeout
    assert not server.connected


async def _outcome(caller: NatsBus, subject: str) -> type[Exception]:
    with pytest.raises(BusError) as caught:
        await caller.request(subject, ABORT, Aborted, timeout_s=0.5)
    return caught.type


async def test_a_handler_has_a_trace_even_without_a_header(shared_nats, connect, spans):
    """A request from outside starts a trace of its own."""
    server = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)
    seen = []

    async def note(order: Abort) -> Aborted:
        seen.append(trace_id())
        return await answer(order)

    subject = fresh_subject()
    await server.serve(Endpoint("abort", subject, Abort, note))
    for _ in range(2):
        await raw.request(subject, encode(ABORT), timeout=2)
    await raw.close()
    assert None not in seen
    assert len(set(seen)) == 2
