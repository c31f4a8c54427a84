"""One client's view of a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from proto.ids import RequestId
from proto.ledger import Placement
from services.gateway.api import Delta, Part, delta_of
from services.gateway.calls.answer import AnswerLog

__all__ = ["Reader", "Subject"]


class Subject(Protocol):
    """What is read: a running request, or the result of a finished one."""

    log: AnswerLog

    @property
    def rid(self) -> RequestId:
        """The id of the request."""
        ...

    @property
    def placement(self) -> Placement:
        """Where its newest attempt runs, or ran."""
        ...

    @property
    def created_ms(self) -> int:
        """When it was accepted."""
        ...

    async def leave(self, reader: Reader, reason: str) -> None:
        """Take note that a reader has gone."""
        ...


class Reader:
    """Implements `services.gateway.api.Live` over a shared log."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._position = 0
        self._gone = False

    @property
    def rid(self) -> RequestId:
        """The id of the request."""
        return self._subject.rid

    @property
    def placement(self) -> Placement:
        """Where the newest attempt runs."""
        return self._subject.placement

    @property
    def created_ms(self) -> int:
        """When the request was first accepted, Unix ms."""
        return self._subject.created_ms

    @property
    def pending(self) -> bool:
        """Whether `deltas` would yield, end or raise without waiting."""
        log = self._subject.log
        return self._position < len(log.parts) or log.ended

    async def deltas(
        self, offer: Callable[[Part], bool] | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer from its first token; ends after the delta with `finish`.

        Args:
            offer: called with what comes while nothing waits to be yielded; what it takes is not
                yielded.

        Raises:
            PdbusError: the request failed; what was yielded before is all there is.
        """
        log = self._subject.log
        while True:
            while self._position < len(log.parts):
                self._position += 1
                yield delta_of(log.parts[self._position - 1])
            if log.failure is not None:
                raise log.failure
            if log.ended:
                return
            self._position = await log.changed(offer)

    async def cancel(self, reason: str) -> None:
        """Leave; idempotent, harmless after the end."""
        if not self._gone:
            self._gone = True
            await self._subject.leave(self, reason)
