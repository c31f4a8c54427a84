"""What two planes say to each other: control messages, chunk headers, UCX tags.

Control messages are msgpack Structs of bounded size. A chunk is one tag message::

    [header 64 B | pages of buffer 0 | pages of buffer 1 | ... | rows | seal 4 B]

Where the payload is not in the message, it says where it is: in runs of the sender's memory, or in
the slab of a segment that both share.

The seal repeats the header's checksum at the far end, so that a message that was cut short, or an
older one left in the slab, is not taken for the chunk.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from libs.transfer.checksum import digest_of
from proto.base import Message, ProtocolError, decode, encode
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import KV_PROTOCOL, Lane

__all__ = [
    "ANY_TAG_MASK",
    "CONTROL_MAX",
    "CONTROL_TAG",
    "FULL_TAG_MASK",
    "HEADER_BYTES",
    "PROBE_MOST",
    "PROBE_TAG",
    "SEAL_BYTES",
    "VERSION",
    "Bye",
    "ChunkHeader",
    "Control",
    "Credit",
    "Hello",
    "ProbeAsk",
    "Ready",
    "RefuseRoom",
    "Refused",
    "Stop",
    "Want",
    "Welcome",
    "WireLayout",
    "data_tag",
    "is_intact",
    "pack",
    "proof_of",
    "seal_chunk",
    "ticket_of",
    "unpack",
    "unseal_chunk",
]

Bytes = npt.NDArray[np.uint8]
_Count = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Slots = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Segment = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFF)]
_SlabBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Worker = Annotated[bytes, msgspec.Meta(min_length=1, max_length=4096)]

VERSION = KV_PROTOCOL
CONTROL_MAX = 16 << 10
"""Most bytes of a control message; a hello grows with the number of buffers."""
CONTROL_TAG = 1 << 56
ANY_TAG_MASK = 0
FULL_TAG_MASK = (1 << 64) - 1
HEADER_BYTES = 64
SEAL_BYTES = 4

PROBE_TAG = 3 << 56
PROBE_MOST = 8 << 20
"""Most bytes that a peer may ask for at once."""

_DATA_TAG = 2 << 56
_MAGIC = 0x70644B56
_FACTS = struct.Struct("<IIQIIIIQQQ")
_U32 = struct.Struct("<I")
_DIGEST_AT = HEADER_BYTES - _U32.size
"""Where the checksum over the payload stands in a header."""
_DIGITS = frozenset("0123456789abcdef")
_LAST = 1
_CHECKED = 2
_SHARED = 4
_ENTRIES_SHIFT = 8
_ENTRY_BYTES = 16


class WireLayout(Message, frozen=True, kw_only=True):
    """The shape of paged memory, as its owner states it."""

    page_bytes: tuple[int, ...]
    row_bytes: tuple[int, ...]
    page_tokens: int
    compat: str
    facts: dict[str, str] = {}
    """What `compat` is the digest of, so that a difference can be named."""


class Hello(Message, frozen=True, kw_only=True):
    """Decode to prefill's accepting worker: who asks, how to answer, and which slabs are posted."""

    version: int
    nonce: str
    incarnation: str
    target: str
    """The incarnation that the sender believes to have reached."""
    lane: Lane
    worker: _Worker
    host: str
    pid: _Pid
    """The sender's process, for peers on the same host."""
    layout: WireLayout
    slab_bytes: _SlabBytes
    slots: _Slots
    segment: _Segment | None = None
    """Shared memory with the slabs, where there is some: payloads may be put there."""
    ticket: bytes = b""
    """See `ticket_of`."""


def ticket_of(secret: bytes, hello: Hello) -> bytes:
    """Return what only a peer can say that has our address from the bus.

    It covers what is given to UCX, which ends the process when that is malformed. It is no
    encryption, and no protection against whoever may read the bus.
    """
    said = (hello.nonce, hello.incarnation, hello.target, hello.lane, hello.worker.hex())
    return hmac.digest(secret, "\n".join(said).encode(), "sha256")


class Welcome(Message, frozen=True, kw_only=True):
    """The accepted answer to a hello."""

    nonce: str
    worker: _Worker
    pid: _Pid
    """The sender's process, for peers on the same host."""
    proof: int = 0
    """On the cma lane: where in the sender's memory the nonce's first 16 digits are, as a word."""


class Refused(Message, frozen=True, kw_only=True):
    """The other answer to a hello."""

    nonce: str
    code: ErrorCode
    detail: str


class Want(Message, frozen=True, kw_only=True):
    """Decode asks for a room."""

    room: Room
    pages: _Count
    skip: _Count
    bytes: int
    """What decode expects to receive in all: pages, and rows where it wants them."""
    row: bool
    tokens: int


class Ready(Message, frozen=True, kw_only=True):
    """Prefill has matched a want with its offer, and has nothing to send yet."""

    room: Room


class RefuseRoom(Message, frozen=True, kw_only=True):
    """Prefill will not serve a want."""

    room: Room
    code: ErrorCode
    detail: str


class Credit(Message, frozen=True, kw_only=True):
    """Decode has posted slabs again."""

    slots: tuple[_Count, ...]


class Stop(Message, frozen=True, kw_only=True):
    """Either side has given a room up."""

    room: Room
    code: ErrorCode
    detail: str


class ProbeAsk(Message, frozen=True, kw_only=True):
    """Decode asks for a message of some size, to see how long it takes."""

    size: Annotated[int, msgspec.Meta(ge=1, le=PROBE_MOST)]


class Bye(Message, frozen=True, kw_only=True):
    """The sender closes its plane in good order."""


Control = Hello | Welcome | Refused | Want | Ready | RefuseRoom | Credit | Stop | ProbeAsk | Bye

_CONTROL: Any = Control


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What a chunk carries, and its place in its room."""

    room: Room
    sequence: int
    first_page: int
    """Place of the first page in the request, counted from its first token."""
    pages: int
    last: bool
    row_bytes: int
    payload: int
    """Bytes of pages and rows."""
    waited_us: int
    """From the push (or the match, if later) of these pages to their departure."""
    sent_ns: int
    """The sender's monotonic clock at departure."""
    checked: bool = False
    """Whether a checksum over the payload comes with it."""
    entries: int = 0
    """So many runs that say where the payload is; 0 where it is elsewhere."""
    shared: bool = False
    """Whether the payload is in the shared slab; without that and runs it is behind the header."""

    @property
    def carried(self) -> int:
        """Bytes between header and seal."""
        if self.shared:
            return 0
        return self.entries * _ENTRY_BYTES if self.entries else self.payload


def data_tag(slot: int) -> int:
    """Return the tag of the receive posted for a slab."""
    return _DATA_TAG | slot


def proof_of(nonce: str) -> int:
    """Return the word in prefill's memory that shows decode whose memory it reads."""
    return int(nonce[:16], 16) if set(nonce[:16]) <= _DIGITS else 0


def pack(message: Control) -> bytes:
    """Return the framed bytes of a control message.

    Raises:
        ProtocolError: it is longer than any receiver accepts.
    """
    data = encode(message)
    if len(data) > CONTROL_MAX - _U32.size:
        raise ProtocolError(f"control message of {len(data)} bytes, limit {CONTROL_MAX}")
    return _U32.pack(len(data)) + data


def unpack(frame: bytes | bytearray | memoryview) -> Control:
    """Return the control message at the start of `frame`, which may be longer.

    Raises:
        ProtocolError: there is no control message.
    """
    view = memoryview(frame)
    if len(view) < _U32.size:
        raise ProtocolError("control message without a length")
    (length,) = _U32.unpack_from(view)
    end = _U32.size + length
    if end > len(view):
        raise ProtocolError(f"control message says {length} bytes, {len(view)} are there")
    return decode(view[_U32.size : end], _CONTROL)


def _flags(header: ChunkHeader) -> int:
    bits = (_LAST if header.last else 0) | (_CHECKED if header.checked else 0)
    return bits | (_SHARED if header.shared else 0) | header.entries << _ENTRIES_SHIFT


def seal_chunk(header: ChunkHeader, slab: Bytes, digest: int | None = None) -> int:
    """Write header and seal around what lies in `slab`; return the message's length.

    `digest` is that of the payload where it is not in the slab.
    """
    facts = _FACTS.pack(
        _MAGIC,
        _flags(header),
        header.room,
        header.sequence,
        header.first_page,
        header.pages,
        header.row_bytes,
        header.payload,
        header.waited_us,
        header.sent_ns,
    )
    check = zlib.crc32(facts)
    view = slab.data
    view[: _FACTS.size] = facts
    _U32.pack_into(view, _FACTS.size, check)
    end = HEADER_BYTES + header.carried
    _U32.pack_into(view, end, check)
    if header.checked:
        known = digest_of(slab[HEADER_BYTES:end]) if digest is None else digest
        _U32.pack_into(view, _DIGEST_AT, known)
    return end + SEAL_BYTES


def unseal_chunk(slab: Bytes) -> ChunkHeader:
    """Return the header of the chunk in `slab`.

    Raises:
        ProtocolError: the slab holds no whole chunk.
    """
    view = slab.data
    facts = _FACTS.unpack_from(view)
    check = zlib.crc32(view[: _FACTS.size])
    if facts[0] != _MAGIC or _U32.unpack_from(view, _FACTS.size)[0] != check:
        raise ProtocolError("not a chunk header")
    header = ChunkHeader(
        room=Room(facts[2]),
        sequence=facts[3],
        first_page=facts[4],
        pages=facts[5],
        last=bool(facts[1] & _LAST),
        row_bytes=facts[6],
        payload=facts[7],
        waited_us=facts[8],
        sent_ns=facts[9],
        checked=bool(facts[1] & _CHECKED),
        entries=facts[1] >> _ENTRIES_SHIFT,
        shared=bool(facts[1] & _SHARED),
    )
    end = HEADER_BYTES + header.carried
    if header.shared and header.entries:
        raise ProtocolError("chunk in two places")
    if end + SEAL_BYTES > len(view) or _U32.unpack_from(view, end)[0] != check:
        raise ProtocolError("chunk without its end")
    return header


def is_intact(header: ChunkHeader, slab: Bytes, digest: int | None = None) -> bool:
    """Return whether the payload is what was sealed; True if nobody can tell.

    `digest` is that of the payload where it is not in the slab.
    """
    if not header.checked:
        return True
    if digest is None:
        digest = digest_of(slab[HEADER_BYTES : HEADER_BYTES + header.payload])
    (sealed,) = _U32.unpack_from(slab.data, _DIGEST_AT)
    return sealed == digest
