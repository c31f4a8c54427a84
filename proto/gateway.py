"""What a gateway receives on the token subject of an attempt.

Array-like and without headers: these messages are sent once a token.
"""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.errors import ErrorCode
from proto.workers import Role

__all__ = ["AttemptFailed", "FinishReason", "StillHere", "StreamMessage", "TokenChunk"]


class FinishReason(StrEnum):
    """Why the engine stopped, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class TokenChunk(Message, frozen=True, kw_only=True, array_like=True, tag="c"):
    """Some consecutive tokens of the answer. A chunk is never cut or merged after it was sent."""

    attempt: int
    offset: int
    """Index of the first token in the whole answer."""
    ids: bytes
    """Token ids, little-endian uint32."""
    text: str = ""
    sent_ms: int = 0
    finish: FinishReason | None = None
    total: int | None = None
    """With `finish`: the number of tokens of the whole answer."""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def count(self) -> int:
        """Number of tokens in the chunk."""
        return len(self.ids) // 4


class StillHere(Message, frozen=True, kw_only=True, array_like=True, tag="h"):
    """Sent once a second by each side of a living attempt: silence means loss."""

    attempt: int
    role: Role
    offset: int = 0
    """Tokens that decode has produced."""
    final: bool = False
    """Prefill has handed over; it will not speak again."""


class AttemptFailed(Message, frozen=True, kw_only=True, array_like=True, tag="f"):
    """One side of the attempt failed; the attempt is over."""

    attempt: int
    role: Role
    code: ErrorCode
    detail: str = ""


StreamMessage = TokenChunk | StillHere | AttemptFailed
