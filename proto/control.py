"""What every worker answers, whichever its role: aborts, releases, inventories, cancels."""

from __future__ import annotations

from proto.base import Message
from proto.ids import RequestId
from proto.workers import LeaseRef

__all__ = [
    "Abort",
    "Aborted",
    "Cancel",
    "Drain",
    "Draining",
    "Inventory",
    "InventoryRequest",
    "Started",
]


class Started(Message, frozen=True, kw_only=True):
    """The work is accepted; sending the same start again gives the same answer."""

    rid: RequestId
    attempt: int
    duplicate: bool = False


class Abort(Message, frozen=True, kw_only=True):
    """Stop an attempt, and refuse it if it comes later.

    Acts on attempts up to and including `attempt`; a newer one is never touched. It is also the
    order to release that cleanup sends.
    """

    rid: RequestId
    attempt: int
    reason: str = ""


class Aborted(Message, frozen=True, kw_only=True):
    """The tombstone is set; the leases still open are named."""

    rid: RequestId
    leases: tuple[LeaseRef, ...] = ()


class Cancel(Message, frozen=True, kw_only=True):
    """Broadcast to all workers: the request ended before its time."""

    rid: RequestId
    attempt: int
    reason: str = ""


class Drain(Message, frozen=True, kw_only=True):
    """Ask a worker to refuse new work, finish what runs, and end its process."""


class Draining(Message, frozen=True, kw_only=True):
    """The worker drains."""

    running: int
    """Attempts that it will still finish."""


class InventoryRequest(Message, frozen=True, kw_only=True):
    """Ask a worker for its open leases."""


class Inventory(Message, frozen=True, kw_only=True):
    """The open leases of one incarnation, now."""

    leases: tuple[LeaseRef, ...]
    tombstones: int
    kv_used_tokens: int
