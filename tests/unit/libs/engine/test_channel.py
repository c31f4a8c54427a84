"""The frames between service and host."""

import asyncio
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.channel import (
    Channel,
    ChannelClosed,
    FrameTooLarge,
    frames,
    open_host_end,
    open_service_end,
)
from proto.base import ProtocolError, encode
from proto.host import AbortJob, EngineLoad, HostProgress, JobTokens, StepTokens, StopHost
from proto.output import Details

MESSAGES = st.lists(
    st.one_of(
        st.builds(
            JobTokens,
            job=st.text(max_size=30),
            ids=st.binary(max_size=64),
            text=st.text(),
            details=st.sampled_from([None, None, None, Details(reasoning="why")]),
        ),
        st.builds(EngineLoad, running=st.integers(0, 1000)),
        st.builds(HostProgress, text=st.text(max_size=200)),
    ),
    max_size=40,
)


async def both():
    ours, theirs = socket.socketpair()
    return await open_service_end(ours), await open_host_end(theirs)


async def gather(end, count):
    found = []
    while len(found) < count:
        for message in await end.receive():
            found += message.apart() if isinstance(message, StepTokens) else (message,)
    return found


@settings(max_examples=30, deadline=None)
@given(MESSAGES)
def test_messages_arrive_whole_and_in_order(messages):
    """Whatever the host sends, the service receives the same messages in the same order."""

    async def scenario():
        service, host = await both()
        for message in messages:
            host.send(message)
        found = await gather(service, len(messages))
        host.close()
        service.close()
        return found

    assert asyncio.run(scenario()) == messages


async def test_one_turn_is_one_frame():
    """All messages sent in one turn of the loop arrive together."""
    service, host = await both()
    for count in (1, 50):
        for number in range(count):
            host.send(EngineLoad(running=number))
        assert len(await service.receive()) == count
    host.close()
    service.close()


async def test_tokens_of_a_step_are_one_message():
    """Plain tokens stand side by side, and what was sent between them keeps its place."""
    service, host = await both()
    said = [JobTokens(job=str(number), ids=bytes(4), text=f"t{number}") for number in range(5)]
    for message in (*said[:3], EngineLoad(running=1), *said[3:]):
        host.send(message)
    first, load, second = await service.receive()
    assert isinstance(first, StepTokens)
    assert isinstance(second, StepTokens)
    assert first.apart() + second.apart() == said
    assert load == EngineLoad(running=1)
    host.close()
    service.close()


async def test_a_step_over_the_limit_is_taken_apart():
    """Tokens that fit no frame together come in several, none over the limit."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, host = await loop.create_unix_connection(
        lambda: Channel(StopHost, max_frame_bytes=300), sock=theirs
    )
    service = await open_service_end(ours)
    said = [JobTokens(job=str(number), ids=bytes(4), text="x" * 90) for number in range(8)]
    for message in said:
        host.send(message)
    heard = [await service.receive() for _ in range(4)]
    assert [token for frame in heard for token in frame] == said
    host.close()
    service.close()


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=40), st.integers(60, 200))
def test_a_batch_over_the_limit_becomes_several_frames(bodies, limit):
    """No frame is over the limit, and no message is lost or cut when a batch is divided."""
    encoded = [encode(HostProgress(text=body.hex())) for body in bodies]
    limit += max(map(len, encoded))
    data = frames(encoded, limit)
    found = []
    while data:
        (length,) = struct.unpack_from(">I", data)
        assert length <= limit
        found.append(data[4 + 5 : 4 + length])
        data = data[4 + length :]
    assert b"".join(found) == b"".join(encoded)


async def test_a_message_over_the_limit_is_refused():
    """A message that fits in no frame is refused when it is sent, and the channel goes on."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, small = await loop.create_unix_connection(
        lambda: Channel(HostProgress, max_frame_bytes=100), sock=ours
    )
    host = await open_host_end(theirs)
    with pytest.raises(FrameTooLarge):
        small.send(AbortJob(job="x" * 200))
    small.send(StopHost())
    assert await host.receive() == [StopHost()]
    small.close()
    host.close()


async def test_an_announced_frame_over_the_limit_is_refused():
    """A length over the limit is refused before anything of that size is read."""
    ours, theirs = socket.socketpair()
    service = await open_service_end(ours)
    theirs.sendall(struct.pack(">I", 1 << 31))
    with pytest.raises(ProtocolError, match="limit"):
        await service.receive()
    theirs.close()
    service.close()


@pytest.mark.parametrize("body", [b"", b"\xc1", encode(StopHost()), b"\x91\x01", b"\xff" * 40])
async def test_other_bytes_are_refused(body):
    """Bytes that are no array of messages are a protocol error."""
    ours, theirs = socket.socketpair()
    service = await open_service_end(ours)
    theirs.sendall(struct.pack(">I", len(body)) + body)
    with pytest.raises(ProtocolError):
        await service.receive()
    theirs.close()
    service.close()


@pytest.mark.parametrize("cut", [0, 2, 6])
async def test_the_end_of_the_socket_is_told(cut):
    """A socket that ends between frames, in a length or in a body is a closed channel."""
    ours, theirs = socket.socketpair()
    service = await open_service_end(ours)
    theirs.sendall(frames([encode(HostProgress(text="half a message"))])[:cut])
    theirs.close()
    with pytest.raises(ChannelClosed):
        await service.receive()
    service.close()


async def test_sending_to_a_closed_end_is_harmless():
    """Messages for an end that is gone are dropped, and `receive` tells that it is gone."""
    service, host = await both()
    host.close()
    with pytest.raises(ChannelClosed):
        await service.receive()
    for _ in range(3):
        service.send(StopHost())
        await asyncio.sleep(0)
    service.close()


@pytest.mark.parametrize("piece", [1, 3, 1000, 70_000])
async def test_frames_may_come_in_any_pieces(piece):
    """Frames, large ones too, are the same messages however the socket cuts them."""
    ours, theirs = socket.socketpair()
    service = await open_service_end(ours)
    theirs.setblocking(False)
    large = 300_000 if piece > 3 else 30
    sent = [HostProgress(text="x" * size) for size in (0, large, 1, large)]
    data = b"".join(frames([encode(message)]) for message in sent)
    loop = asyncio.get_running_loop()
    for at in range(0, len(data), piece):
        await loop.sock_sendall(theirs, data[at : at + piece])
        await asyncio.sleep(0)
    assert await gather(service, len(sent)) == sent
    theirs.close()
    service.close()


async def test_messages_are_handed_on_where_they_are_read():
    """Who takes messages gets those that wait and all that follow, in order; the end is told."""
    service, host = await both()
    taken = []
    host.send(EngineLoad(running=0))
    await asyncio.sleep(0.01)
    service.hand_on(taken.append)
    for number in (1, 2):
        host.send(EngineLoad(running=number))
        host.flush()
    host.close()
    with pytest.raises(ChannelClosed):
        await service.receive()
    assert [[load.running for load in messages] for messages in taken] == [[0], [1], [2]]
    service.close()


async def test_drain_waits_for_the_other_end():
    """What the other end has not read is waited for, and its end lets nobody wait."""
    service, host = await both()
    for _ in range(20):
        service.send(AbortJob(job="x" * 100_000))
    service.flush()
    draining = asyncio.ensure_future(service.drain())
    host.close()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(draining, 5)
    service.close()
