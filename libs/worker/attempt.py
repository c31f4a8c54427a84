"""One attempt on one worker, from its start until nobody can ask about it any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from proto import subjects
from proto.ids import JobId, RequestId, job_id
from proto.prefill import ReplyTo

__all__ = ["Attempt"]


@dataclass(slots=True)
class Attempt:
    """What a worker knows of an attempt that it has started."""

    rid: RequestId
    number: int
    reply: ReplyTo
    started_ms: float
    aborted: str | None = None
    """Why it was told to stop."""
    over: bool = False
    """The engine holds nothing for it any more."""
    quiet: bool = False
    """It has said its last word; only its log may still be asked for."""
    produced: int = 0
    log: list[Any] = field(default_factory=list[Any])
    """What was said on the token subject, for replay."""
    task: asyncio.Task[Any] | None = None

    @property
    def job(self) -> JobId:
        """The id under which the engine knows it."""
        return job_id(self.rid, self.number)

    @property
    def subject(self) -> str:
        """Where its messages go."""
        return subjects.tokens(self.reply.gateway, self.reply.incarnation, self.reply.nonce)
