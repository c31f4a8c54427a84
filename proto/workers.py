"""Who is out there: identity, compatibility, load and open leases of each process."""

from __future__ import annotations

import base64
import hashlib
from enum import StrEnum
from functools import lru_cache

import msgspec

from proto.base import Message
from proto.ids import Incarnation, InstanceId, LeaseId, RequestId
from proto.kv import KV_PROTOCOL, PeerAddress
from proto.pairs import ANY_LANE, LanePolicy, PairReport

__all__ = [
    "CompatCard",
    "Feature",
    "Heartbeat",
    "LeaseRef",
    "LeaseSide",
    "Role",
    "WorkerLoad",
    "WorkerRef",
    "WorkerState",
]


_DIGEST = 16
_MARK = 4


class Role(StrEnum):
    """What a process does in the system."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"
    CLEANUP = "cleanup"


class Feature(StrEnum):
    """What an engine can do beyond plain text; never a matter of compatibility."""

    GUIDES = "guides"
    """Answers that match a JSON schema, a regular expression or a grammar."""
    LOGPROBS = "logprobs"
    TOOLS = "tools"
    """Tool calls are told apart from text."""
    REASONING = "reasoning"
    """Reasoning is told apart from the answer."""


class WorkerState(StrEnum):
    """Whether a process may be given work."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class LeaseSide(StrEnum):
    """Which memory a lease is about."""

    SRC = "src"
    """Prefill's pages."""
    DST = "dst"
    """Decode's pages."""


class WorkerRef(Message, frozen=True, kw_only=True):
    """One incarnation of one worker: the address of all control messages."""

    role: Role
    instance: InstanceId
    incarnation: Incarnation


class CompatCard(Message, frozen=True, kw_only=True):
    """All that must be equal before KV may move from one engine to another."""

    model: str
    """Served name."""
    revision: str
    """Hash of the model's content."""
    tokenizer: str
    """Hash of the tokenizer and its chat template."""
    dtype: str
    kv_dtype: str
    kv_layout: str
    page_size: int
    layers: int
    kv_heads: int
    head_dim: int
    tp: int = 1
    pp: int = 1
    attention: str = ""
    engine: str = ""
    engine_version: str = ""
    protocol: int = KV_PROTOCOL
    """Version of what two data planes say to each other."""
    draft: str | None = None
    """How answers are drafted ahead, where they are."""
    context_tokens: int = 0

    @property
    def digest(self) -> str:
        """16 hex digits; equal exactly when the cards are equal."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:_DIGEST]

    @property
    def compat(self) -> str:
        """The digest, and four characters a field: what travels in place of the card.

        Whoever has only this text can still name the fields in which another card differs.
        """
        return _compat_of(self)

    def mismatches(self, compat: str) -> tuple[str, ...]:
        """Return the names of the fields in which the card behind a `compat` text differs.

        A text of another version of this program is a difference in `protocol`.
        """
        mine = self.compat
        if compat == mine:
            return ()
        if len(compat) != len(mine):
            return ("protocol",)
        start = _DIGEST + 1
        places = enumerate(self.__struct_fields__)
        spans = ((name, start + at * _MARK) for at, name in places)
        found = tuple(n for n, at in spans if compat[at : at + _MARK] != mine[at : at + _MARK])
        return found or ("protocol",)

    def differences(self, other: CompatCard) -> tuple[str, ...]:
        """Return the names of the fields in which two cards differ."""
        return tuple(
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)
        )

    def contrast(self, other: CompatCard, here: str, there: str) -> str:
        """Return the fields in which two cards differ, with the value that each side has."""
        return ", ".join(
            f"{name}: {getattr(self, name)} in {here}, {getattr(other, name)} in {there}"
            for name in self.differences(other)
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one token takes in all layers of one engine."""
        width = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
        return self.layers * 2 * self.kv_heads * self.head_dim * width.get(self.kv_dtype, 2)


@lru_cache(maxsize=1024)
def _compat_of(card: CompatCard) -> str:
    # Asked for with each choice of a pair, of cards that change when an engine starts.
    marks = (_mark(name, getattr(card, name)) for name in card.__struct_fields__)
    return f"{card.digest}.{''.join(marks)}"


def _mark(name: str, value: str | int | None) -> str:
    """Return four characters that stand for the value of a field."""
    digest = hashlib.sha256(f"{name}={value!r}".encode()).digest()
    return base64.urlsafe_b64encode(digest[: _MARK * 3 // 4]).decode()


class LeaseRef(Message, frozen=True, kw_only=True):
    """An open lease, as its owner reports it."""

    lease: LeaseId
    rid: RequestId
    attempt: int
    side: LeaseSide
    tokens: int
    age_s: float
    closing: bool = False
    """The owner has begun to free it."""


class WorkerLoad(Message, frozen=True, kw_only=True):
    """How busy an engine is."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    """Prompt tokens accepted and not yet prefilled."""
    slots: int = 0
    """Most requests that run at once."""
    slots_free: int = 0
    """Slots neither running nor reserved."""
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    kv_reserved_tokens: int = 0
    kv_unshared_links: int = 0
    """Links to engines of the same host that got no shared memory, since the engine's start."""
    engine_age_s: float = 0.0
    """Age of the engine's own figures."""


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent once a second by every process; the only source of liveness.

    It carries the whole description of its sender, so that a process that has just started knows
    the fleet after one period.
    """

    role: Role
    instance: InstanceId
    incarnation: Incarnation
    version: str
    sequence: int
    sent_ms: int
    state: WorkerState
    reason: str = ""
    """Why the state is not `ready`."""
    card: CompatCard | None = None
    address: PeerAddress | None = None
    load: WorkerLoad | None = None
    leases: tuple[LeaseRef, ...] = ()
    pids: tuple[int, ...] = ()
    """Process ids of the engine, for operators on the same host."""
    features: tuple[Feature, ...] = ()
    kv_lanes: LanePolicy = ANY_LANE
    """Which lanes its KV may take."""
    pairs: tuple[PairReport, ...] = ()
    """Decode: what is known of the way to each prefill engine."""

    @property
    def ref(self) -> WorkerRef:
        """The sender as the address of control messages."""
        return WorkerRef(role=self.role, instance=self.instance, incarnation=self.incarnation)
