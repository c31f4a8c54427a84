"""One attempt on one worker, from its start until nobody can ask about it any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from proto import subjects
from proto.errors import ErrorCode, PdbusError
from proto.gateway import StreamMessage, TokenChunk
from proto.host import Job, JobFailed, JobFinished, JobTokens
from proto.ids import Incarnation, InstanceId, JobId, Nonce, RequestId, job_id
from proto.prefill import ReplyTo

__all__ = ["MOST_LISTENERS", "Attempt", "AttemptTable", "Letter", "Work", "subject_of"]

MOST_LISTENERS = 64
"""Gateways (or readers of one key) that may follow one attempt."""
_NEWS_MS = 250
"""So old may tokens be that stand for a beat: until the next one nobody takes it for silence."""


class Letter:
    """What is to be said to one gateway next."""

    __slots__ = ("__weakref__", "gateway", "incarnation", "items")

    def __init__(self, gateway: InstanceId, incarnation: Incarnation) -> None:
        self.gateway = gateway
        self.incarnation = incarnation
        self.items: list[tuple[Nonce, StreamMessage]] = []


@dataclass(slots=True)
class Attempt:
    """What a worker knows of an attempt that it has started."""

    rid: RequestId
    number: int
    reply: ReplyTo
    started_ms: float
    started_s: float
    aborted: str | None = None
    """Why it was told to stop."""
    over: bool = False
    """The engine holds nothing for it any more."""
    quiet: bool = False
    """It has said its last word; only its log may still be asked for."""
    offset: int = 0
    """Index of its first token in the whole answer."""
    produced: int = 0
    """Tokens of the answer so far, those of earlier attempts included."""
    counted: int = field(init=False)
    """Of `produced`, what is in the metrics or was produced by others."""
    log: list[Any] = field(default_factory=list[Any])
    """What was said on the token subject, for replay."""
    listeners: dict[Nonce, ReplyTo] = field(default_factory=dict[Nonce, ReplyTo])
    ears: list[tuple[Nonce, Letter]] | None = None
    """The same for who speaks; None where they have changed."""

    def __post_init__(self) -> None:
        self.listeners[self.reply.nonce] = self.reply
        self.counted = self.produced

    @property
    def job(self) -> JobId:
        """The id under which the engine knows it."""
        return job_id(self.rid, self.number)

    def subjects(self) -> list[str]:
        """Return where its messages go."""
        return [subject_of(reply) for reply in self.listeners.values()]

    def gateways(self) -> set[Incarnation]:
        """Return the gateways that follow it."""
        return {reply.incarnation for reply in self.listeners.values()}

    def has_news(self, now_ms: int) -> bool:
        """Return whether its newest tokens are so new that they stand for a beat."""
        last = self.log[-1] if self.log else None
        # The clock may have been set back since.
        return isinstance(last, TokenChunk) and 0 <= now_ms - last.sent_ms < _NEWS_MS

    def listen(self, reply: ReplyTo) -> None:
        """Let one more gateway follow; the same one again changes nothing.

        Raises:
            PdbusError: saturated.
        """
        if reply.nonce not in self.listeners and len(self.listeners) >= MOST_LISTENERS:
            raise PdbusError(ErrorCode.SATURATED, f"{MOST_LISTENERS} follow this attempt already")
        self.listeners[reply.nonce] = reply
        self.ears = None


class Work(Protocol):
    """What a role makes of one attempt. Its functions are called where outputs arrive."""

    @property
    def job(self) -> Job:
        """What the engine is to do."""
        ...

    def take(self, tokens: JobTokens) -> None:
        """Take tokens, in order; the engine calls it with nothing in between."""
        ...

    def take_plain(self, ids: bytes, text: str) -> None:
        """Take tokens without details, in one order with the others."""
        ...

    def last(self, output: JobFinished | JobFailed) -> bool:
        """Take the final output; return whether all is done, or `Worker.end` will be called."""
        ...

    def lost(self) -> None:
        """Give up: the engine is dead."""
        ...


class AttemptTable(dict[tuple[RequestId, int], Attempt]):
    """All attempts of one worker; which is the newest of a request is known without a search."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[RequestId, set[int]] = {}

    def add(self, attempt: Attempt) -> None:
        """Take in an attempt that begins."""
        self[attempt.rid, attempt.number] = attempt
        self._numbers.setdefault(attempt.rid, set()).add(attempt.number)

    def forget(self, attempt: Attempt) -> None:
        """Drop an attempt that nobody can ask about any more; harmless if it is gone."""
        self.pop((attempt.rid, attempt.number), None)
        numbers = self._numbers.get(attempt.rid, set())
        numbers.discard(attempt.number)
        if not numbers:
            self._numbers.pop(attempt.rid, None)

    def running(self) -> list[Attempt]:
        """Return the attempts that are not over."""
        return [attempt for attempt in self.values() if not attempt.over]

    def newest(self, rid: RequestId) -> int:
        """Return the highest number of a request's attempts here; -1 if there is none."""
        return max(self._numbers.get(rid, ()), default=-1)


def subject_of(reply: ReplyTo) -> str:
    """Return the token subject that a gateway listens to."""
    return subjects.tokens(reply.gateway, reply.incarnation, reply.nonce)
