"""What the HTTP side asks of the request side: open a call, read its answer, give it up.

`services.gateway.request.Coordinator` implements it in production; tests of the HTTP side bring
their own. The HTTP side never talks to the bus.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from proto.errors import ErrorCode
from proto.gateway import FinishReason, TokenChunk
from proto.ids import RequestId, TenantHash
from proto.ledger import Mode, Placement, Usage
from proto.output import Details, Parsing
from proto.sampling import SamplingParams
from proto.workers import Feature
from services.gateway.prompt import PromptIds

__all__ = [
    "Call",
    "Calls",
    "Delta",
    "FleetView",
    "Live",
    "Part",
    "Readiness",
    "Recover",
    "ServedModel",
    "Slo",
    "UnknownFields",
    "delta_of",
]


class Recover(StrEnum):
    """Whether an answer may go on with another decode after its first token."""

    NEVER = "never"
    GREEDY = "greedy"
    """Only where the next token does not depend on chance."""
    ANY = "any"
    """No token is lost or repeated; the continuation is drawn given what was shown."""


@dataclass(frozen=True, slots=True)
class Slo:
    """How fast an answer is meant to be, in milliseconds; None where nothing is said."""

    ttft_ms: int | None = None
    itl_ms: int | None = None


class UnknownFields(StrEnum):
    """What becomes of a request with fields that nobody knows."""

    REFUSE = "refuse"
    IGNORE = "ignore"
    """They are left out and counted; fields that are known and refused still are."""


class Call(msgspec.Struct, frozen=True):
    """A validated request: all that the system needs to know of it."""

    rid: RequestId
    tenant: TenantHash
    model: str
    prompt: PromptIds
    sampling: SamplingParams
    digest: str
    """SHA-256 of the canonical body, the model and the tenant."""
    deadline_ms: int
    """Unix time at which the whole answer must have been given."""
    mode: Mode | None = None
    """None lets the router choose."""
    key: str | None = None
    """The client's idempotency key. Then `rid` is replaced by the id that the key stands for."""
    recover: Recover = Recover.NEVER
    parsing: Parsing | None = None
    """How decode is to take the answer apart; None for plain text."""
    cache_salt: str = ""
    """Requests share cached prefixes only with those of the same salt."""
    priority: int = 0
    """Who is served first where requests wait: the higher one."""
    slo: Slo | None = None
    """What the tenant aims for; carried for whoever routes by it."""

    @property
    def input_ids(self) -> bytes:
        """Token ids of the prompt, little-endian uint32."""
        return self.prompt.ids

    @property
    def prompt_tokens(self) -> int:
        """How many there are."""
        return self.prompt.tokens


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Some consecutive tokens of the answer, in order, without gaps and duplicates."""

    ids: bytes
    text: str
    finish: FinishReason | None = None
    usage: Usage | None = None
    """Set exactly with `finish`."""
    details: Details | None = None


Part = Delta | TokenChunk
"""Some tokens of the answer; a chunk is taken as it came only where it ends nothing."""


def delta_of(part: Part) -> Delta:
    """Return some tokens as their owner tells of them."""
    if isinstance(part, TokenChunk):
        return Delta(part.ids, part.text, details=part.details)
    return part


class Live(Protocol):
    """A request that has been placed and started."""

    @property
    def rid(self) -> RequestId:
        """The request, for all attempts."""
        ...

    @property
    def placement(self) -> Placement:
        """Where the newest attempt runs."""
        ...

    @property
    def created_ms(self) -> int:
        """When the request was first accepted, Unix ms."""
        ...

    @property
    def pending(self) -> bool:
        """Whether `deltas` would yield, end or raise without waiting.

        The writer gathers what is pending into one write.
        """
        ...

    def deltas(self, offer: Callable[[Part], bool] | None = None) -> AsyncGenerator[Delta, None]:
        """Yield the answer; ends after the delta with `finish`.

        Args:
            offer: called with what comes while the reader waits, where it arrives: a task that
                wakes for each token costs more than the token's write. It must return at once;
                what it takes is not yielded.

        Raises:
            PdbusError: the request failed; what was yielded before is all there is.
        """
        ...

    async def cancel(self, reason: str) -> None:
        """Say that this reader has left.

        Without a key that gives the request up: both sides stop and it ends in the ledger. With
        one it may come back for ten seconds.

        Idempotent, harmless after the end, and returns quickly: it orders, others wait.
        """
        ...


class Calls(Protocol):
    """Whoever carries out calls."""

    async def open(self, call: Call) -> Live:
        """Enter the call in the ledger, find a place, and start both sides.

        Cancelling the task that waits for this cancels the request.

        Raises:
            PdbusError: refused or failed before any token of the answer.
        """
        ...


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests can be served now."""

    ok: bool
    reason: str = ""
    """Why not, for operators; empty when ok."""
    code: ErrorCode = ErrorCode.STARTING
    """What a client is told while not ok: `starting`, `draining`, `no_worker`, ..."""


class ServedModel(msgspec.Struct, frozen=True):
    """A model that at least one set of workers can serve now."""

    name: str
    context_tokens: int
    """Prompt and answer together, at most, in every set of workers; 0 where unknown."""
    tokenizer: str = ""
    """Hash of the tokenizer and its chat template, from the workers' cards; empty where unknown."""
    features: frozenset[Feature] = frozenset()
    """What every set of workers of the model can do."""


class FleetView(Protocol):
    """What the gateway knows of the workers."""

    def readiness(self) -> Readiness:
        """Return whether requests can be served now."""
        ...

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models that can be served now."""
        ...
