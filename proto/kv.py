"""What is known about KV memory and its transfers."""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.ids import Room

__all__ = ["KV_PROTOCOL", "Lane", "PeerAddress", "RankAddress", "TransferReport"]

KV_PROTOCOL = 2
"""Raised when a change makes old and new data planes misunderstand each other."""


class Lane(StrEnum):
    """The transport that carried the bytes, as UCX names it."""

    SYSV = "sysv"
    POSIX = "posix"
    CMA = "cma"
    TCP = "tcp"
    RC = "rc"
    CUDA_IPC = "cuda_ipc"
    LOCAL = "local"
    """No transfer: prefill and decode ran in one engine."""
    UNKNOWN = "unknown"


class RankAddress(Message, frozen=True, kw_only=True):
    """How to reach the data plane of a further rank, on the host of the first."""

    incarnation: str
    workers: dict[str, bytes] = {}
    secret: bytes = b""


class PeerAddress(Message, frozen=True, kw_only=True):
    """How to reach the data plane of one engine incarnation."""

    incarnation: str
    host: str
    """Identity of the host and of its IPC namespace: equal means shared memory is shared."""
    workers: dict[str, bytes] = {}
    """UCX worker address per lane on which this engine accepts peers."""
    ranks: tuple[RankAddress, ...] = ()
    """The planes of its further tensor-parallel ranks, in order."""
    secret: bytes = b""
    """Proves to this engine that whoever greets it has this address from the bus."""


class TransferReport(Message, frozen=True, kw_only=True):
    """What one KV transfer did, as its receiver (or its sender) saw it."""

    room: Room
    lane: Lane
    expected_bytes: int
    """layers x 2 x heads x head_dim x bytes per value x tokens, by the layout of the card."""
    moved_bytes: int
    tokens: int = 0
    held_tokens: int = 0
    """Tokens at the start of the prompt that decode had already: their bytes are not expected."""
    chunks: int = 0
    queue_s: float = 0.0
    """Admission: from the first byte that could have been sent to its departure."""
    wire_s: float = 0.0
    """From the first chunk's departure (its arrival, if it came from another host) to the last
    one's arrival; on the sending side, to the last one's departure."""
    copy_s: float = 0.0
    """Gathering and scattering of pages on the side that reports."""
    total_s: float = 0.0
    """From the ask until all pages are usable."""
