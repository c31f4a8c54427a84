"""Finished answers, kept for a while for whoever sends the same idempotency key again."""

from __future__ import annotations

from proto.base import Message
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Placement, Usage
from proto.output import Details

__all__ = ["MOST_RESULT_BYTES", "ResultPart", "StoredResult"]

MOST_RESULT_BYTES = 256 << 10
"""A longer answer is not kept."""


class ResultPart(Message, frozen=True, kw_only=True, array_like=True, tag="p"):
    """Some consecutive tokens, as they were first given."""

    ids: bytes
    text: str
    details: Details | None = None


class StoredResult(Message, frozen=True, kw_only=True):
    """One answer. Kept in memory of the store only: it is text, and never goes to a disk."""

    rid: RequestId
    parts: tuple[ResultPart, ...]
    finish: FinishReason
    usage: Usage
    placement: Placement
    created_ms: int
