"""From the KV backend inside SGLang's scheduler process to the engine host that started it.

The other way goes only `ProbePeer`.
"""

from __future__ import annotations

from proto.base import Message
from proto.errors import ErrorCode
from proto.host import PeerProbed
from proto.ids import Room
from proto.kv import PeerAddress, TransferReport

__all__ = ["BackendMessage", "PlaneFigures", "PlaneOpened", "RoomClosed"]


class PlaneOpened(Message, frozen=True, kw_only=True):
    """The data plane listens; with it, what only the scheduler knows of its memory."""

    address: PeerAddress
    kv_dtype: str
    kv_layout: str
    page_size: int
    page_bytes: int
    """Bytes of one page in all layers."""
    row_bytes: int
    """Bytes of metadata (first token, log-probabilities, ...) that travel with each request."""
    buffers: int
    """K and V buffers, two a layer."""


class RoomClosed(Message, frozen=True, kw_only=True):
    """A transfer has reached its final state on this side."""

    room: Room
    report: TransferReport | None = None
    held_tokens: int = 0
    """Tokens at the start of the prompt that decode held already, by the word of its scheduler."""
    code: ErrorCode | None = None
    """Why it failed; None when it did not."""
    detail: str = ""
    queue_s: float = 0.0
    """Prefill: from arrival in the scheduler until the first forward pass."""
    forward_s: float = 0.0
    """Prefill: from the first forward pass until the prompt was computed."""


class PlaneFigures(Message, frozen=True, kw_only=True):
    """Counters of the data plane, sent when they have changed."""

    open_rooms: int
    dropped_chunks: int
    unshared_links: int = 0


BackendMessage = PlaneOpened | RoomClosed | PlaneFigures | PeerProbed
