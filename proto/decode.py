"""What a decode worker receives."""

from __future__ import annotations

from proto.base import Message
from proto.ids import LeaseId, RequestId, Room
from proto.kv import PeerAddress
from proto.ledger import Mode
from proto.output import Parsing
from proto.prefill import ReplyTo
from proto.sampling import SamplingParams

__all__ = ["DecodeStart", "Replay", "Replayed", "Reserve", "Reserved"]


class Reserve(Message, frozen=True, kw_only=True):
    """Hold a slot and KV room for an attempt until it starts."""

    rid: RequestId
    attempt: int
    tokens: int
    """Prompt and answer together, at most."""
    compat: str
    not_after_ms: int
    """The reservation dies then unless its start has come."""
    deadline_ms: int


class Reserved(Message, frozen=True, kw_only=True):
    """The slot is held."""

    lease: LeaseId
    write_by_ms: int
    """No KV may begin to move later than this. Fixed here, carried unchanged."""


class DecodeStart(Message, frozen=True, kw_only=True):
    """Fetch the KV of a prompt (or compute it), and stream the answer."""

    rid: RequestId
    attempt: int
    mode: Mode
    room: Room
    input_ids: bytes
    """Token ids, little-endian uint32."""
    sampling: SamplingParams
    reply: ReplyTo
    compat: str
    not_after_ms: int
    deadline_ms: int
    source: PeerAddress | None = None
    """Data plane of the prefill engine; None where decode computes the prompt itself."""
    offset: int = 0
    """Tokens of the answer that earlier attempts have given; `input_ids` ends with them."""
    parsing: Parsing | None = None
    cache_salt: str = ""
    """Requests share cached prefixes only with those of the same salt."""


class Replay(Message, frozen=True, kw_only=True):
    """Ask for chunks again, from a token offset on, and for all that follow.

    Whoever asks becomes a listener of the attempt: a gateway that joins a running answer asks from
    offset 0.
    """

    rid: RequestId
    attempt: int
    offset: int
    reply: ReplyTo


class Replayed(Message, frozen=True, kw_only=True):
    """The chunks are on their way to the token subject."""

    chunks: int
    first: int = 0
    """Offset of the oldest token that this attempt can give."""
