"""The bus port on a real server: publish, subscribe, request."""

from __future__ import annotations

import asyncio
import inspect
import time

import nats
import pytest

from libs.bus import (
    BusDown,
    Endpoint,
    NatsBus,
    NoResponders,
    RequestTimeout,
    TooLarge,
)
from libs.bus.frames import head_of
from libs.telemetry import names, span
from proto.base import encode
from proto.control import Abort, Aborted
from proto.decode import Replay
from proto.errors import ErrorCode, PdbusError
from proto.gateway import AttemptFailed, StillHere, StreamMessage, TokenChunk
from proto.headers import TRACEPARENT
from proto.ids import RequestId
from proto.subjects import template
from proto.workers import Role
from tests.integration.bus.words import ABORT, answer, endpoint, fresh, fresh_subject, until

pytestmark = pytest.mark.integration


async def test_a_published_message_reaches_every_subscriber(shared_nats, connect):
    """Publish goes to all who listen, with its subject, decoded."""
    sender, reader, other = [await connect(shared_nats) for _ in range(3)]
    subject = fresh_subject()
    seen = []
    await reader.subscribe(subject, Abort, lambda s, m: seen.append((s, m)))
    await other.subscribe(subject, Abort, lambda s, m: seen.append((s, m)))
    await sender.publish(subject, ABORT)
    await until(lambda: len(seen) == 2)
    assert seen == [(subject, ABORT), (subject, ABORT)]


async def test_a_subscription_takes_a_union_of_messages_in_order(shared_nats, connect):
    """Token streams carry several kinds of messages on one subject, in order."""
    bus = await connect(shared_nats)
    subject = f"pdbus.v1.tokens.{fresh('g')}.i.n"
    sent = [
        TokenChunk(attempt=0, offset=0, ids=b"\1\0\0\0", text="a"),
        StillHere(attempt=0, role=Role.DECODE),
        AttemptFailed(attempt=0, role=Role.PREFILL, code=ErrorCode.ENGINE_ERROR),
    ]
    seen = []
    await bus.subscribe(subject, StreamMessage, lambda _, m: seen.append(m))
    for message in sent:
        await bus.publish(subject, message)
    await until(lambda: len(seen) == 3)
    assert seen == sent


async def test_published_messages_carry_no_headers(shared_nats, connect, spans):
    """A header costs more than a token chunk, so publish adds none, inside a trace neither."""
    bus = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)
    subject = fresh_subject()
    heard = await raw.subscribe(subject)
    await raw.flush()
    await bus.link.barrier()
    await raw.flush()
    with span("outer"):
        await bus.publish(subject, ABORT)
    assert (await heard.next_msg(timeout=2)).headers is None
    await raw.close()


async def test_barrier_makes_a_subscription_visible_to_other_connections(shared_nats, connect):
    """After subscribe returns, a request from another connection never meets nobody.

    With one flush, 5 of 100 did.
    """
    server, caller = await connect(shared_nats), await connect(shared_nats)
    for _ in range(200):
        subject = fresh_subject()
        served = await server.serve(endpoint(subject))
        await caller.request(subject, ABORT, Aborted, timeout_s=2)
        await served.close()


async def test_undecodable_messages_are_counted_and_dropped(shared_nats, connect, metric):
    """A stranger's bytes on a subject neither end the subscription nor reach the handler."""
    bus = await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)
    subject = fresh_subject()
    label = template(subject)
    before = metric(names.BUS_DECODE_ERRORS.name, template=label)
    seen = []
    await bus.subscribe(subject, Abort, lambda _, m: seen.append(m))
    await raw.publish(subject, b"\xff\xfe no msgpack")
    await raw.publish(subject, encode(Aborted(rid=RequestId("another type"))))
    await raw.flush()
    await bus.publish(subject, ABORT)
    await until(lambda: seen)
    await raw.close()
    assert seen == [ABORT]
    assert metric(names.BUS_DECODE_ERRORS.name, template=label) == before + 2


async def test_a_failing_handler_does_not_end_its_subscription(shared_nats, connect, metric):
    """A fault in a handler is counted, and the next message is handled."""
    bus = await connect(shared_nats)
    subject = fresh_subject()
    label = template(subject)
    before = metric(names.BUS_HANDLER_ERRORS.name, template=label)
    seen = []

    def handle(_subject: str, message: Abort) -> None:
        seen.append(message)
        raise RuntimeError("fault of a handler")

    await bus.subscribe(subject, Abort, handle)
    await bus.publish(subject, ABORT)
    await bus.publish(subject, ABORT)
    await until(lambda: len(seen) == 2)
    assert metric(names.BUS_HANDLER_ERRORS.name, template=label) == before + 2


async def test_a_burst_is_lost_by_nobody(shared_nats, connect):
    """NATS-03: messages reach their handler where they are read; no queue of ours overflows."""
    sender, one, other = [await connect(shared_nats) for _ in range(3)]
    subject = fresh_subject()
    few, many = [], []

    def handle_slowly(_subject: str, message: Abort) -> None:
        time.sleep(0.0005)
        few.append(message)

    await one.subscribe(subject, Abort, handle_slowly)
    await other.subscribe(subject, Abort, lambda _, m: many.append(m))
    for _ in range(3000):
        await sender.publish(subject, ABORT)
    await until(lambda: len(many) == len(few) == 3000)


async def test_a_closed_subscription_has_handled_all_that_was_sent_before(shared_nats, connect):
    """Close is orderly: messages that the server took before it are not lost."""
    bus = await connect(shared_nats)
    subject = fresh_subject()
    seen = []
    subscription = await bus.subscribe(subject, Abort, lambda _, m: seen.append(m))
    for _ in range(500):
        await bus.publish(subject, ABORT)
    await subscription.close()
    assert len(seen) == 500
    await bus.publish(subject, ABORT)
    await bus.link.barrier()
    assert len(seen) == 500


async def test_request_returns_the_typed_reply(shared_nats, connect):
    """A request is answered by the endpoint with its reply type."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    subject = fresh_subject()
    await server.serve(endpoint(subject))
    reply = await caller.request(subject, ABORT, Aborted, timeout_s=2)
    assert reply == Aborted(rid=ABORT.rid)


async def test_a_process_can_ask_itself(shared_nats, connect):
    """The port promises delivery to anyone, so the connection hears its own messages."""
    bus = await connect(shared_nats)
    subject = fresh_subject()
    await bus.serve(endpoint(subject))
    assert await bus.request(subject, ABORT, Aborted, timeout_s=2) == Aborted(rid=ABORT.rid)


async def test_nobody_listening_is_told_at_once(shared_nats, connect):
    """Without a listener a request fails with NoResponders long before its deadline."""
    bus = await connect(shared_nats)
    async with asyncio.timeout(5):
        with pytest.raises(NoResponders):
            await bus.request(fresh_subject(), ABORT, Aborted, timeout_s=60)


async def test_request_waits_for_its_whole_deadline_and_no_longer(shared_nats, connect):
    """The caller's deadline counts, not nats-py's default of half a second."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    release = asyncio.Event()

    async def slow(order: Abort) -> Aborted:
        await asyncio.sleep(0.7)
        return Aborted(rid=order.rid)

    async def stuck(order: Abort) -> Aborted:
        await release.wait()
        return Aborted(rid=order.rid)

    first, second = fresh_subject(), fresh_subject()
    await server.serve(endpoint(first, slow))
    await server.serve(endpoint(second, stuck))
    assert await caller.request(first, ABORT, Aborted, timeout_s=10) == Aborted(rid=ABORT.rid)
    with pytest.raises(RequestTimeout):
        await caller.request(second, ABORT, Aborted, timeout_s=0.1)
    with pytest.raises(RequestTimeout):
        await caller.request(first, ABORT, Aborted, timeout_s=0)
    release.set()


def test_a_request_cannot_be_made_without_a_deadline():
    """The deadline is a required argument of the port."""
    deadline = inspect.signature(NatsBus.request).parameters["timeout_s"]
    assert deadline.default is inspect.Parameter.empty


async def test_a_refusal_arrives_as_the_error_with_its_code(shared_nats, connect):
    """A handler's PdbusError is raised at the caller, with all that it carries."""
    server, caller = await connect(shared_nats), await connect(shared_nats)

    async def refuse(_order: Abort) -> Aborted:
        raise PdbusError(ErrorCode.SATURATED, "slots", param="n", retry_after_s=1.5)

    subject = fresh_subject()
    await server.serve(endpoint(subject, refuse))
    with pytest.raises(PdbusError) as caught:
        await caller.request(subject, ABORT, Aborted, timeout_s=2)
    error = caught.value
    assert (error.code, error.detail, error.param, error.retry_after_s) == (
        ErrorCode.SATURATED,
        "slots",
        "n",
        1.5,
    )


async def test_a_reply_of_another_type_is_an_internal_error(shared_nats, connect):
    """A caller never gets an object that it did not ask for."""
    server, caller = await connect(shared_nats), await connect(shared_nats)

    async def wrong(order: Abort) -> Replay:
        return Replay(rid=order.rid, attempt=0, offset=0)

    subject = fresh_subject()
    await server.serve(endpoint(subject, wrong))
    with pytest.raises(PdbusError) as caught:
        await caller.request(subject, ABORT, Aborted, timeout_s=2)
    assert caught.value.code is ErrorCode.INTERNAL


async def test_a_request_carries_the_callers_trace(shared_nats, connect, spans):
    """The handler runs as `process <template>` in the caller's trace; the header is lower case."""
    server, caller = await connect(shared_nats), await connect(shared_nats)
    raw = await nats.connect(shared_nats.url)
    subject = fresh_subject()
    await server.serve(endpoint(subject))
    tap = await raw.subscribe(subject)
    await raw.flush()
    await server.link.barrier()
    await raw.flush()
    with span("outer") as outer:
        await caller.request(subject, ABORT, Aborted, timeout_s=2)
    headers = (await tap.next_msg(timeout=2)).headers
    await raw.close()
    assert TRACEPARENT == "traceparent"
    assert TRACEPARENT in headers
    await until(lambda: "process" in " ".join(s.name for s in spans.get_finished_spans()))
    by_name = {s.name: s for s in spans.get_finished_spans()}
    send, process = by_name[f"send {template(subject)}"], by_name[f"process {template(subject)}"]
    assert send.parent.span_id == outer.get_span_context().span_id
    assert process.parent.span_id == send.get_span_context().span_id
    assert process.attributes["messaging.destination.template"] == template(subject)


@pytest.mark.parametrize("over", [0, 1])
async def test_size_is_checked_to_the_byte_and_with_headers(shared_nats, connect, spans, over):
    """What the server would answer with a cut connection is refused here; what fits is sent.

    nats-py counts the payload only: one header too many cost the whole connection.
    """
    bus = await connect(shared_nats)
    subject = fresh_subject()
    limit = bus.link.client.max_payload
    seen = []
    await bus.subscribe(subject, Abort, lambda _, m: seen.append(m))
    await bus.serve(Endpoint("size", f"{subject}.sized", Abort, answer))
    empty = len(encode(Abort(rid=RequestId(""), attempt=0, reason="x" * 70_000))) - 70_000

    def sized(size: int) -> Abort:
        return Abort(rid=RequestId(""), attempt=0, reason="x" * (size - empty))

    with span("outer"):
        header = {TRACEPARENT: "00-" + "0" * 32 + "-" + "0" * 16 + "-01"}
        asked = bus.request(
            f"{subject}.sized",
            sized(limit - len(head_of(header) or b"") + over),
            Aborted,
            timeout_s=5,
        )
        if over:
            with pytest.raises(TooLarge):
                await asked
            with pytest.raises(TooLarge):
                await bus.publish(subject, sized(limit + 1))
        else:
            await asked
            await bus.publish(subject, sized(limit))
            await until(lambda: seen)
    assert bus.link.client.stats["reconnects"] == 0
    assert bus.connected


async def test_a_reply_that_is_too_large_is_an_error_not_a_silence(shared_nats, connect):
    """The caller of an endpoint whose reply does not fit hears about it."""
    server, caller = await connect(shared_nats), await connect(shared_nats)

    async def huge(order: Abort) -> Aborted:
        return Aborted(rid=RequestId("x" * (server.link.client.max_payload + 1)))

    subject = fresh_subject()
    await server.serve(endpoint(subject, huge))
    with pytest.raises(PdbusError) as caught:
        await caller.request(subject, ABORT, Aborted, timeout_s=2)
    assert caught.value.code is ErrorCode.INTERNAL
    assert server.link.client.stats["reconnects"] == 0


async def test_while_disconnected_everything_fails_at_once_with_bus_down(own_nats, connect):
    """Without a connection nothing waits, and nothing is kept for later."""
    bus = await connect(own_nats)
    subject = fresh_subject()
    seen = []
    await bus.subscribe(subject, Abort, lambda _, m: seen.append(m))
    assert bus.connected
    assert bus.down_s == 0.0
    own_nats.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(BusDown):
        await bus.publish(subject, ABORT)
    with pytest.raises(BusDown):
        await bus.request(subject, ABORT, Aborted, timeout_s=60)
    with pytest.raises(BusDown):
        await bus.subscribe(fresh_subject(), Abort, lambda _s, _m: None)
    await asyncio.sleep(0.05)
    assert bus.down_s > 0.0
    await own_nats.start()
    await until(lambda: bus.connected)
    await bus.publish(subject, Abort(rid=RequestId("later"), attempt=0))
    await until(lambda: seen)
    assert [message.rid for message in seen] == ["later"]
    assert bus.down_s == 0.0


async def test_what_waits_for_a_hanging_server_is_bounded(own_nats, connect):
    """Before the pings notice, publishers are slowed and then refused; memory does not grow."""
    bus = await connect(own_nats, ping_interval_s=60)
    own_nats.pause()
    big = Abort(rid=RequestId("big"), attempt=0, reason="x" * 400_000)

    async def flood() -> None:
        for _ in range(200):
            await bus.publish(fresh_subject(), big)

    with pytest.raises(BusDown, match="does not take"):
        await flood()
    assert bus.link.client.pending_data_size < 10_000_000
    own_nats.resume()
    await bus.link.barrier()
    await bus.publish(fresh_subject(), ABORT)


async def test_what_a_hanging_server_did_not_take_is_not_sent_later(own_nats, connect):
    """What still waits when the connection is lost dies with it: stale is worse than lost."""
    sender = await connect(own_nats, ping_interval_s=0.3)
    subject = fresh_subject()
    # A stream sees what reaches the server, whoever else is back already.
    await sender.link.client.jetstream().add_stream(name="WITNESS", subjects=[subject])
    own_nats.pause()
    big = Abort(rid=RequestId("stale"), attempt=0, reason="x" * 400_000)

    async def flood() -> None:
        while True:
            await sender.publish(subject, big)
            await asyncio.sleep(0)

    with pytest.raises(BusDown):
        await flood()
    await until(lambda: not sender.connected)
    own_nats.kill()
    await own_nats.start()
    await until(lambda: sender.connected)
    await sender.publish(subject, Abort(rid=RequestId("fresh"), attempt=0))
    await sender.link.barrier()
    info = await sender.link.client.jetstream().stream_info("WITNESS")
    assert info.state.messages == 1
