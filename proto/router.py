"""What the router is asked, and what it answers."""

from __future__ import annotations

from proto.base import Message
from proto.ids import Incarnation, RequestId
from proto.kv import PeerAddress
from proto.ledger import Mode, Placement, RequestRecord, Sink
from proto.workers import WorkerRef

__all__ = ["Claim", "Claimed", "Place", "Placed", "Plan", "ScoreTerm"]


class Place(Message, frozen=True, kw_only=True):
    """Ask for a place for one attempt. Carries lengths, never the prompt.

    Sending it again with the same request and attempt gives the same plan.
    """

    rid: RequestId
    attempt: int
    model: str
    prompt_tokens: int
    max_tokens: int
    sink: Sink
    deadline_ms: int
    not_after_ms: int
    """The router must have answered by then; the caller has stopped listening after it."""
    mode: Mode | None = None
    """None lets the router choose."""
    prefix_hashes: tuple[int, ...] = ()
    exclude: tuple[WorkerRef, ...] = ()
    """Incarnations that failed an earlier attempt: avoided where there are others."""
    priority: int = 0
    """Who is served first where requests wait: the higher one."""
    record: RequestRecord | None = None
    """The record as the caller has just written it: then it need not be read first. A compare and
    set shows whether it still stands."""
    revision: int = 0
    """Of `record`."""


class ScoreTerm(Message, frozen=True, kw_only=True):
    """One reason for a choice, in the unit of the score (seconds)."""

    name: str
    value: float


class Plan(Message, frozen=True, kw_only=True):
    """Where the attempt runs, with the decode slot already reserved."""

    placement: Placement
    source: PeerAddress | None
    """Data plane of the prefill engine, for decode to fetch from."""
    write_by_ms: int | None = None
    """No KV may begin to move later; fixed by decode at its reservation. None in a repeated
    plan: then the deadline of the request bounds it."""
    queued_s: float = 0.0
    """How long the router held the request until a slot was free."""
    candidates: int = 0
    terms: tuple[ScoreTerm, ...] = ()


class Placed(Message, frozen=True, kw_only=True):
    """The answer to `Place`: a plan, or that the request still waits for a slot.

    A caller that still waits asks again at once and keeps its turn; so it notices within a slice
    of about a second when the router is lost.
    """

    plan: Plan | None
    ahead: int = 0
    """Requests that wait in front of this one."""


class Claim(Message, frozen=True, kw_only=True):
    """Sent by decode before it emits: may this incarnation stream this attempt?"""

    rid: RequestId
    attempt: int
    worker: WorkerRef
    gateway: Incarnation | None = None
    """Who has started the attempt."""


class Claimed(Message, frozen=True, kw_only=True):
    """The claim is granted; a refusal is an error reply (`stale_attempt`, `cancelled`)."""

    attempt: int
    revision: int = 0
    """Of the record as the claim has left it, where the gateway of the claim owns it: all that it
    knows of the record still stands. 0 where that is not sure."""
