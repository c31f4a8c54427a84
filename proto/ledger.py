"""The request record: the one shared truth about a request, changed by compare-and-set only."""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId, RequestId, Room, TenantHash
from proto.workers import WorkerRef

__all__ = [
    "TERMINAL",
    "Cleaned",
    "Mode",
    "Placement",
    "RequestRecord",
    "RequestState",
    "Sink",
    "Usage",
]


class RequestState(StrEnum):
    """Where a request stands."""

    ACCEPTED = "accepted"
    ASSIGNED = "assigned"
    STREAMING = "streaming"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED})
"""States that never change again."""


class Mode(StrEnum):
    """How a request is computed."""

    DISAGGREGATED = "disaggregated"
    AGGREGATED = "aggregated"


class Sink(Message, frozen=True, kw_only=True):
    """The gateway that owns a request; only it may write the terminal state."""

    gateway: InstanceId
    incarnation: Incarnation
    epoch: int = 0


class Placement(Message, frozen=True, kw_only=True):
    """Where one attempt runs."""

    attempt: int
    mode: Mode
    decode: WorkerRef
    prefill: WorkerRef | None = None
    """None where decode computes the prompt itself."""
    room: Room
    compat: str
    """Digest of the card that both workers share."""


class Usage(Message, frozen=True, kw_only=True):
    """Tokens counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    migrations: int = 0
    """Times the answer went on with another decode after its first token."""
    reasoning_tokens: int = 0


class Cleaned(Message, frozen=True, kw_only=True):
    """Which sides are proved free, by their owner's word or by what cleanup sees."""

    src: bool = False
    dst: bool = False


class RequestRecord(Message, frozen=True, kw_only=True):
    """One request in the ledger. It holds no text of the prompt or of the answer."""

    rid: RequestId
    tenant: TenantHash
    model: str
    state: RequestState
    attempt: int
    """The fencing number: the newest attempt that may act. -1 before the first placement."""
    sink: Sink
    digest: str
    """SHA-256 of the canonical body, the model and the tenant."""
    deadline_ms: int
    created_ms: int
    placement: Placement | None = None
    error: ErrorCode | None = None
    detail: str = ""
    usage: Usage | None = None
    ended_ms: int | None = None
    cleaned: Cleaned = Cleaned()
    traceparent: str | None = None
    """W3C context of the request, for what happens to its leases after its end."""

    @property
    def ended(self) -> bool:
        """Whether the state is terminal."""
        return self.state in TERMINAL
