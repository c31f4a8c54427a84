"""What a worker says of its attempts on the token subjects of those who follow."""

from __future__ import annotations

from libs.bus.api import Bus, BusDown, TooLarge
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, get_logger, names
from libs.worker.attempt import Attempt, subject_of
from proto import subjects
from proto.base import Message
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.gateway import AttemptFailed, StreamBatch, StreamMessage
from proto.ids import Incarnation
from proto.prefill import ReplyTo
from proto.workers import Role

__all__ = ["Speaker"]


_MOST_ITEMS = 256
_PAUSE_S = 0.001

Said = tuple[ReplyTo, StreamMessage]


class Speaker:
    """Publishes stream messages, at most once: what is lost is asked for again by replay.

    What is said within one turn of the loop leaves together: one message a gateway. Whoever speaks
    more often than once in a millisecond waits for the rest of it: an engine faster than that is
    told of in larger messages.
    """

    def __init__(
        self, *, bus: Bus, clock: Clock, chronicle: Chronicle, role: Role, tasks: Tasks
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._left_s = -_PAUSE_S
        self._chronicle = chronicle
        self._role = role
        self._tasks = tasks
        self._said: dict[Incarnation, list[Said]] = {}
        """By the gateway that it is for."""
        self._leaving = False

    def say(self, attempt: Attempt, message: StreamMessage) -> None:
        """Tell all who follow an attempt."""
        for reply in attempt.listeners.values():
            self.tell(reply, message)

    def tell(self, reply: ReplyTo, message: StreamMessage) -> None:
        """Tell one who follows."""
        said = self._said.get(reply.incarnation)
        if said is None:
            said = self._said[reply.incarnation] = []
        said.append((reply, message))
        if not self._leaving:
            self._leaving = True
            self._tasks.spawn(self._leave(), name="speak")

    async def _leave(self) -> None:
        try:
            while self._said:
                early_s = self._left_s + _PAUSE_S - self._clock.monotonic()
                if early_s > 0:
                    await self._clock.sleep(early_s)
                self._left_s = self._clock.monotonic()
                said, self._said = self._said, {}
                for part in said.values():
                    await self._send(part)
        finally:
            self._leaving = False

    async def _send(self, said: list[Said]) -> None:
        """Send what goes to one gateway, in order."""
        if len(said) == 1:
            await self._publish(subject_of(said[0][0]), said[0][1])
            return
        first = said[0][0]
        subject = subjects.token_batches(first.gateway, first.incarnation)
        for start in range(0, len(said), _MOST_ITEMS):
            part = said[start : start + _MOST_ITEMS]
            batch = StreamBatch(items=tuple((reply.nonce, message) for reply, message in part))
            try:
                await self._publish(subject, batch)
            except TooLarge:
                for reply, message in part:
                    await self._publish(subject_of(reply), message)

    async def _publish(self, subject: str, message: Message) -> None:
        try:
            await self._bus.publish(subject, message)
        except BusDown:
            count(names.STREAM_UNSENT, role=str(self._role))
        except TooLarge as error:
            if isinstance(message, StreamBatch):
                raise
            # Whoever follows sees a gap that no replay can close.
            count(names.STREAM_UNSENT, role=str(self._role))
            get_logger().error("message too large to be said", error=str(error))

    def fail(self, attempt: Attempt, code: ErrorCode, detail: str) -> None:
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
        self.say(attempt, message)
