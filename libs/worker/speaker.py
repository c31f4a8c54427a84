"""What a worker says of its attempts on the token subjects of those who follow."""

from __future__ import annotations

from libs.bus.api import Bus, BusDown
from libs.chronicle import Chronicle
from libs.telemetry import count, names
from libs.worker.attempt import Attempt
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.gateway import AttemptFailed, StreamMessage
from proto.workers import Role

__all__ = ["Speaker"]


class Speaker:
    """Publishes stream messages, at most once: what is lost is asked for again by replay."""

    def __init__(self, *, bus: Bus, chronicle: Chronicle, role: Role) -> None:
        self._bus = bus
        self._chronicle = chronicle
        self._role = role

    async def say(self, attempt: Attempt, message: StreamMessage) -> None:
        """Tell all who follow an attempt."""
        for subject in attempt.subjects():
            await self.tell(subject, message)

    async def tell(self, subject: str, message: StreamMessage) -> None:
        """Tell one who follows."""
        try:
            await self._bus.publish(subject, message)
        except BusDown:
            count(names.STREAM_UNSENT, role=str(self._role))

    async def fail(self, attempt: Attempt, code: ErrorCode, detail: str) -> None:
        """Tell that the attempt is over."""
        if code is ErrorCode.CANCELLED and attempt.aborted is None:
            # Nobody ordered it: the other side has given up the transfer.
            code = ErrorCode.KV_TRANSFER_FAILED
        if code is ErrorCode.CANCELLED:
            if attempt.log and isinstance(attempt.log[-1], AttemptFailed):
                # It was stopped from here, and why has been told already.
                return
            # Whoever ordered it knows, and listens no more; who follows besides must hear of it.
            detail = attempt.aborted or detail
        else:
            self._chronicle.fact(
                EventKind.ATTEMPT_FAILED, attempt.rid, attempt.number, code=str(code), detail=detail
            )
        message = AttemptFailed(attempt=attempt.number, role=self._role, code=code, detail=detail)
        attempt.log.append(message)
        await self.say(attempt, message)
