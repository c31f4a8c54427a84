from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.transfer.wire import (
    CONTROL_MAX,
    HEADER_BYTES,
    SEAL_BYTES,
    VERSION,
    Bye,
    ChunkHeader,
    Credit,
    Hello,
    Ready,
    Refused,
    RefuseRoom,
    Stop,
    Want,
    Welcome,
    WireLayout,
    data_tag,
    is_intact,
    pack,
    seal_chunk,
    unpack,
    unseal_chunk,
)
from proto.base import ProtocolError
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane

U32 = st.integers(0, 2**32 - 1)
ROOM = Room(2**63 - 1)
LAYOUT = WireLayout(page_bytes=(8,) * 160, row_bytes=(4,), page_tokens=16, compat="card")
HELLO = Hello(
    version=VERSION,
    nonce="n",
    incarnation="i",
    target="t",
    lane=Lane.TCP,
    worker=b"w" * 81,
    host="h",
    pid=1,
    layout=LAYOUT,
    slab_bytes=1 << 20,
    slots=4,
)
CONTROLS = [
    HELLO,
    Welcome(nonce="n", worker=b"w", pid=1),
    Refused(nonce="n", code=ErrorCode.VERSION_MISMATCH, detail="d"),
    Want(room=ROOM, pages=1, skip=2, bytes=3, row=True, tokens=4),
    Ready(room=ROOM),
    RefuseRoom(room=ROOM, code=ErrorCode.DEADLINE, detail="d"),
    Credit(slots=(3, 1)),
    Stop(room=ROOM, code=ErrorCode.CANCELLED, detail="d"),
    Bye(),
]


@pytest.mark.parametrize("message", CONTROLS, ids=lambda message: type(message).__name__)
def test_a_control_message_survives_a_longer_buffer(message) -> None:
    """A message is read back from a receive buffer whose rest is old bytes."""
    buffer = bytearray(b"\xaa" * CONTROL_MAX)
    data = pack(message)
    buffer[: len(data)] = data
    assert unpack(buffer) == message


def test_an_oversized_message_is_not_sent() -> None:
    """A message that no receiver would accept is refused by its sender."""
    with pytest.raises(ProtocolError, match="limit"):
        pack(Stop(room=ROOM, code=ErrorCode.INTERNAL, detail="x" * CONTROL_MAX))


@given(st.binary(max_size=64))
def test_noise_is_no_control_message(noise: bytes) -> None:
    """Arbitrary bytes, and truncated messages, raise ProtocolError and nothing else."""
    for data in (noise, pack(HELLO)[: len(noise)]):
        with pytest.raises(ProtocolError):
            unpack(data)


@pytest.mark.parametrize(
    "change", [{"slots": 0}, {"slots": 1 << 40}, {"worker": b""}, {"slab_bytes": 1 << 40}]
)
def test_numbers_that_would_exhaust_the_receiver_are_refused(change: dict[str, object]) -> None:
    """A hello may not make its receiver allocate without bound."""
    fields = {name: getattr(HELLO, name) for name in HELLO.__struct_fields__}
    with pytest.raises(ProtocolError):
        unpack(pack(Hello(**{**fields, **change})))


HEADERS = st.builds(
    ChunkHeader,
    room=st.integers(0, 2**63 - 1).map(Room),
    sequence=U32,
    first_page=U32,
    pages=U32,
    last=st.booleans(),
    row_bytes=U32,
    payload=st.integers(0, 256),
    waited_us=U32,
    sent_ns=st.integers(0, 2**63),
)


@given(HEADERS)
def test_a_header_round_trips(header: ChunkHeader) -> None:
    """Seal and unseal agree, and leave the payload alone."""
    slab = np.full(HEADER_BYTES + 256 + SEAL_BYTES, 7, np.uint8)
    assert seal_chunk(header, slab) == HEADER_BYTES + header.payload + SEAL_BYTES
    assert unseal_chunk(slab) == header
    assert (slab[HEADER_BYTES : HEADER_BYTES + header.payload] == 7).all()


@given(HEADERS, st.integers(0, HEADER_BYTES - 9), st.integers(1, 255))
def test_a_damaged_header_is_no_chunk(header: ChunkHeader, at: int, flip: int) -> None:
    """Any changed byte of the header's facts is noticed."""
    slab = np.zeros(HEADER_BYTES + 256 + SEAL_BYTES, np.uint8)
    seal_chunk(header, slab)
    slab[at] ^= flip
    with pytest.raises(ProtocolError):
        unseal_chunk(slab)


def test_a_chunk_without_its_end_is_no_chunk() -> None:
    """A chunk cut short over the remains of an older one is noticed."""
    slab = np.zeros(HEADER_BYTES + 256 + SEAL_BYTES, np.uint8)
    header = ChunkHeader(
        room=ROOM,
        sequence=0,
        first_page=0,
        pages=1,
        last=True,
        row_bytes=0,
        payload=256,
        waited_us=0,
        sent_ns=0,
    )
    whole = seal_chunk(header, slab)
    for cut in (1, SEAL_BYTES, 100):
        damaged = slab.copy()
        damaged[whole - cut : whole] = 0x55
        with pytest.raises(ProtocolError):
            unseal_chunk(damaged)


def test_a_chunk_whose_payload_is_elsewhere_is_short() -> None:
    """What is in shared memory does not travel; a chunk that says two places is none."""
    slab = np.zeros(HEADER_BYTES + 64 + SEAL_BYTES, np.uint8)
    header = ChunkHeader(
        room=ROOM,
        sequence=0,
        first_page=0,
        pages=1,
        last=True,
        row_bytes=0,
        payload=1 << 30,
        waited_us=0,
        sent_ns=0,
        checked=True,
        shared=True,
    )
    assert seal_chunk(header, slab, digest=7) == HEADER_BYTES + SEAL_BYTES
    assert unseal_chunk(slab) == header
    assert is_intact(header, slab, 7)
    assert not is_intact(header, slab, 8)
    seal_chunk(replace(header, entries=2), slab, digest=7)
    with pytest.raises(ProtocolError, match="two places"):
        unseal_chunk(slab)


def test_tags_of_slots_differ() -> None:
    """Every slot has a tag of its own."""
    assert len({data_tag(slot) for slot in range(1024)}) == 1024
