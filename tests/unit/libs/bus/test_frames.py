"""The bytes of NATS' protocol, cut in every way, against nats-py's own understanding."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError

from libs.bus.frames import Delivery, FrameParser, frame_of, head_of, headers_of

_MOST_SIDS = 100
Seen = tuple[int, str, str, bytes, bytes]


class Reader:
    """Takes what a parser hands on."""

    def __init__(self, *, queued: frozenset[int] = frozenset()) -> None:
        self.seen: list[Seen] = []
        self.errors: list[Exception] = []
        self.pongs = 0
        self.handlers = {
            sid: partial(self._take, sid) for sid in range(_MOST_SIDS) if sid not in queued
        }

    async def queue(self, sid: int, delivery: Delivery) -> None:
        """Take a message for a queue; its number is told with a minus."""
        self._take(-sid, delivery)

    async def complain(self, error: Exception) -> None:
        """Take a fault of a handler."""
        self.errors.append(error)

    async def _process_pong(self) -> None:
        self.pongs += 1

    def _take(self, sid: int, delivery: Delivery) -> None:
        if delivery.data == b"fault":
            raise KeyError(delivery.subject)
        self.seen.append((sid, delivery.subject, delivery.reply, delivery.data, delivery.head))


def told(reader: Reader, *pieces: bytes) -> FrameParser:
    """Read pieces of a connection."""
    parser = FrameParser(reader)

    async def read() -> None:
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(read())
    return parser


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.sampled_from(["a", "pdbus.v1.x.y", "$KV.B.k"]),
        st.sampled_from(["", "_INBOX.x.1"]),
        st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 1\r\n", b"PONG\r\n"]),
        st.sampled_from([b"", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\na: b\r\n\r\n"]),
    ),
    max_size=6,
)


def wire(message: Seen) -> bytes:
    """Return a message as a server sends it."""
    sid, subject, reply, data, head = message
    to = f"{subject} {sid} {reply}".strip().encode()
    if not head:
        return b"MSG %b %d\r\n%b\r\n" % (to, len(data), data)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(data), head, data)


@given(messages=MESSAGES, size=st.integers(1, 60), pongs=st.booleans())
def test_messages_come_whole_however_they_are_cut(messages: list[Seen], size: int, pongs: bool):
    """What a server sends reaches the handlers in order and once, in pieces of any size."""
    between = b"PONG\r\n" if pongs else b""
    sent = b"".join(wire(message) + between for message in messages)
    reader = Reader()
    told(reader, *(sent[at : at + size] for at in range(0, len(sent), size)))
    assert reader.seen == messages
    assert reader.pongs == (len(messages) if pongs else 0)


@given(
    messages=MESSAGES,
    size=st.integers(1, 60),
    pongs=st.booleans(),
    queued=st.frozensets(st.integers(0, 99)),
)
def test_messages_are_the_same_without_a_task(
    messages: list[Seen], size: int, pongs: bool, queued: frozenset[int]
):
    """What is taken where it is read, and what is left to be parsed, are all messages in order."""
    between = b"PONG\r\n" if pongs else b""
    sent = b"".join(wire(message) + between for message in messages)
    plain, short = Reader(queued=queued), Reader(queued=queued)
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    told(plain, *pieces)
    parser = FrameParser(short)

    async def read() -> None:
        for piece in pieces:
            rest = piece[parser.take(piece) :]
            if rest:
                await parser.parse(rest)

    asyncio.run(read())
    assert (short.seen, short.pongs) == (plain.seen, plain.pongs)
    assert len(short.seen) == len(messages)


def test_a_fault_without_a_task_is_complained_of_with_what_comes_next():
    """The message behind it is left for the task that complains, and nothing is handled twice."""
    reader = Reader()
    parser = FrameParser(reader)
    data = wire((1, "a", "", b"fault", b"")) + wire((1, "a", "", b"x", b""))
    rest = data[parser.take(data) :]
    assert parser.troubled
    asyncio.run(parser.parse(rest))
    assert not parser.troubled
    assert [type(error) for error in reader.errors] == [KeyError]
    assert [data for *_, data, _ in reader.seen] == [b"x"]


@pytest.mark.parametrize("line", [b"PING\r\n", b"MSG a\r\n", b"MSG a 1 5\r\nhal", b"-ERR 'x'\r\n"])
def test_what_is_no_whole_message_is_not_taken(line: bytes):
    """Whatever needs the connection's own task is left for it."""
    assert FrameParser(Reader()).take(line) == 0


def test_a_fault_of_a_handler_ends_neither_the_message_behind_it_nor_the_connection():
    """It is complained of, and what comes next is handled."""
    reader = Reader()
    told(reader, wire((1, "a", "", b"fault", b"")) + wire((1, "a", "", b"x", b"")))
    assert [type(error) for error in reader.errors] == [KeyError]
    assert [data for *_, data, _ in reader.seen] == [b"x"]


def test_a_subscription_without_a_handler_has_a_queue():
    """Its messages are handed to it, headers and all."""
    reader = Reader(queued=frozenset({7}))
    message = (7, "a", "r", b"x", b"NATS/1.0\r\na: b\r\n\r\n")
    told(reader, wire(message))
    assert reader.seen == [(-7, *message[1:])]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a\r\n",
        b"MSG a x 1\r\n",
        b"MSG a 1 r s 1\r\n",
        b"HMSG a 1 1\r\n",
        b"MESSAGE a 1 1\r\n",
        b"garbage\r\n",
        b"MSG " + b"x" * 5000,
    ],
)
def test_what_is_not_the_protocol_is_refused(line: bytes):
    """The connection is given up then, and not read on in the middle of something."""
    with pytest.raises(ProtocolError):
        told(Reader(), line)


def test_a_new_connection_starts_with_nothing():
    """Half a message of the last connection is no part of it."""
    reader = Reader()
    parser = told(reader, wire((1, "a", "", b"x" * 20, b""))[:-9])
    parser.reset()
    asyncio.run(parser.parse(wire((2, "b", "", b"y", b""))))
    assert reader.seen == [(2, "b", "", b"y", b"")]


@pytest.mark.parametrize(
    "head",
    [
        b"NATS/1.0\r\na: b\r\n\r\n",
        b"NATS/1.0\r\na:b\r\nTwo:  c d \r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1016\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\na: x:y\r\na: later\r\n\r\n",
        "NATS/1.0\r\nu: \u00e4\r\n\r\n".encode(),
    ],
)
def test_headers_are_read_as_nats_py_reads_them(head: bytes):
    """Names, values and the status line mean the same."""
    assert headers_of(head) == (asyncio.run(Client()._process_headers(head)) or {})


@pytest.mark.parametrize("headers", [{"a": "b"}, {"a": "b", "cc": ""}, {"traceparent": "x y"}])
def test_headers_that_were_written_are_read_again(headers: dict[str, str]):
    """What is written is what stands there."""
    assert headers_of(head_of(headers) or b"") == headers


def test_no_header_can_add_another_one():
    """Line breaks in a value become spaces."""
    assert headers_of(head_of({"a": "b\r\nc: d"}) or b"") == {"a": "b  c: d"}


def test_headers_of_a_message_are_read_once():
    """Whoever asks again gets what was read for the first."""
    message = Delivery("a", "", b"", head_of({"x": "1"}) or b"")
    assert message.headers == {"x": "1"}
    assert message.headers is message.headers
    assert Delivery("a", "", b"").headers == {}


def test_no_headers_take_no_bytes():
    """A message without headers is a plain one."""
    assert head_of(None) is None
    assert head_of({}) is None
    assert frame_of("a", "", b"xy", None) == b"PUB a 2\r\nxy\r\n"
    assert frame_of("a", "r", b"xy", None) == b"PUB a r 2\r\nxy\r\n"


def test_headers_are_counted_in_bytes():
    """The server is told where the headers end and where the message does."""
    head = head_of({"a": "\u00e4"}) or b""
    assert frame_of("s", "r", b"xy", head) == (
        b"HPUB s r %d %d\r\n%bxy\r\n" % (len(head), len(head) + 2, head)
    )
