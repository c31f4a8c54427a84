"""What a gateway receives: the messages of an attempt's token subject, and an operator's cancel.

The first are array-like and without headers, because they are sent once a token.
"""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.errors import ErrorCode
from proto.ids import Nonce, RequestId
from proto.output import Details
from proto.workers import Role

__all__ = [
    "AttemptFailed",
    "CallState",
    "CancelCall",
    "FinishReason",
    "HoldCall",
    "StillHere",
    "StreamBatch",
    "StreamMessage",
    "TokenChunk",
]


class FinishReason(StrEnum):
    """Why the engine stopped, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class TokenChunk(Message, frozen=True, kw_only=True, array_like=True, tag="c", gc=False):
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
    details: Details | None = None
    revision: int = 0
    """With `finish`: of the record, as the claim has left it; 0 where it is not known."""
    freed: bool = False
    """With `finish`: decode holds nothing for the attempt any more."""

    @property
    def count(self) -> int:
        """Number of tokens in the chunk."""
        return len(self.ids) // 4


class StillHere(Message, frozen=True, kw_only=True, array_like=True, tag="h", gc=False):
    """Sent once a second by each side of a living attempt that says nothing else."""

    attempt: int
    role: Role
    offset: int = 0
    """Tokens that decode has produced."""
    final: bool = False
    """Prefill has handed over; it will not speak again."""
    freed: bool = False
    """With `final`: prefill holds nothing for the attempt any more."""


class AttemptFailed(Message, frozen=True, kw_only=True, array_like=True, tag="f"):
    """One side of the attempt failed; the attempt is over."""

    attempt: int
    role: Role
    code: ErrorCode
    detail: str = ""


class CancelCall(Message, frozen=True, kw_only=True):
    """Ask the gateway that owns a request to cancel it."""

    rid: RequestId
    reason: str


class HoldCall(Message, frozen=True, kw_only=True):
    """Ask the gateway that owns a request to run on without readers of its own for a while."""

    rid: RequestId


class CallState(Message, frozen=True, kw_only=True):
    """What the gateway knows of a request."""

    rid: RequestId
    running: bool
    """Whether it was running here when the question came."""


StreamMessage = TokenChunk | StillHere | AttemptFailed


class StreamBatch(Message, frozen=True, kw_only=True, array_like=True, tag="b"):
    """What one worker has to say to one gateway at one time, of several attempts.

    A step of an engine gives a token to each running request: one message a step costs a fraction
    of one a token. It is lost as a whole; each attempt closes its own gap.
    """

    items: tuple[tuple[Nonce, StreamMessage], ...]
    """Each for the attempt that listens under the nonce."""
