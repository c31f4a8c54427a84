"""What a prefill worker receives."""

from __future__ import annotations

from proto.base import Message
from proto.ids import Incarnation, InstanceId, Nonce, RequestId, Room
from proto.sampling import SamplingParams

__all__ = ["PrefillStart", "ReplyTo"]


class ReplyTo(Message, frozen=True, kw_only=True):
    """The token subject of one attempt."""

    gateway: InstanceId
    incarnation: Incarnation
    nonce: Nonce


class PrefillStart(Message, frozen=True, kw_only=True):
    """Compute the KV of a prompt and hand it to whoever asks for the room."""

    rid: RequestId
    attempt: int
    room: Room
    input_ids: bytes
    """Token ids, little-endian uint32."""
    sampling: SamplingParams
    reply: ReplyTo
    compat: str
    not_after_ms: int
    """A start that arrives later is refused: it is a stale copy."""
    deadline_ms: int
    write_by_ms: int
    """No transfer may begin later; fixed by decode when it reserved."""
    cache_salt: str = ""
    """Requests share cached prefixes only with those of the same salt."""
    asker: Incarnation | None = None
    """The decode engine that will ask for the room, where it is known."""
