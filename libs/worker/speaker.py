"""What a worker says of its attempts on the token subjects of those who follow."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from libs.bus.api import Bus, BusDown, TooLarge
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, get_logger, names
from libs.worker.attempt import Attempt, Letter
from libs.worker.upkeep import contained
from proto import subjects
from proto.base import Message
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.gateway import AttemptFailed, StreamBatch, StreamMessage
from proto.ids import Incarnation, InstanceId, Nonce
from proto.prefill import ReplyTo
from proto.workers import Role

__all__ = ["Speaker"]


_MOST_ITEMS = 256
_PAUSE_S = 0.001

Said = tuple[Nonce, StreamMessage]


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
        self._letters: WeakValueDictionary[tuple[InstanceId, Incarnation], Letter]
        self._letters = WeakValueDictionary()
        """Of all gateways that follow anything."""
        self._opened: list[Letter] = []
        """Those with something to be said."""
        self._leaving = False
        """Somebody will send it."""
        self._patient = asyncio.Event()
        """It has to wait."""
        self._waiter: asyncio.Task[None] | None = None

    def say(self, attempt: Attempt, message: StreamMessage) -> None:
        """Tell all who follow an attempt."""
        ears = attempt.ears
        if ears is None:
            followers = attempt.listeners.values()
            ears = attempt.ears = [(reply.nonce, self._letter(reply)) for reply in followers]
        for nonce, letter in ears:
            if not letter.items:
                self._open(letter)
            letter.items.append((nonce, message))

    def tell(self, reply: ReplyTo, message: StreamMessage) -> None:
        """Tell one who follows."""
        letter = self._letter(reply)
        if not letter.items:
            self._open(letter)
        letter.items.append((reply.nonce, message))

    @property
    def silent(self) -> bool:
        """Whether all that was said has left."""
        return not self._opened and not self._leaving

    def _letter(self, reply: ReplyTo) -> Letter:
        key = (reply.gateway, reply.incarnation)
        letter = self._letters.get(key)
        if letter is None:
            letter = self._letters[key] = Letter(*key)
        return letter

    def _open(self, letter: Letter) -> None:
        self._opened.append(letter)
        if not self._leaving:
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        """Send what was said in this turn of the loop, unless something has to wait."""
        self._leaving = False
        now_s = self._clock.monotonic()
        if now_s - self._left_s >= _PAUSE_S:
            self._left_s = now_s
            with contained("speak"):
                self._post_all()
        if not self._opened:
            return
        self._leaving = True
        self._patient.set()
        if self._waiter is None or self._waiter.done():
            self._waiter = self._tasks.spawn(self._leave_patiently(), name="speak")

    def _post_all(self) -> None:
        """Send what is one message a gateway, up to what has to wait."""
        while self._opened:
            letter = self._opened.pop()
            said, letter.items = letter.items, []
            if not self._post(letter, said):
                letter.items = said
                self._opened.append(letter)
                return

    def _post(self, letter: Letter, said: list[Said]) -> bool:
        """Send what goes to one gateway, if it is one message and need not wait."""
        if len(said) == 1:
            ((nonce, message),) = said
            subject = subjects.tokens(letter.gateway, letter.incarnation, nonce)
        elif len(said) <= _MOST_ITEMS:
            message = StreamBatch(items=tuple(said))
            subject = subjects.token_batches(letter.gateway, letter.incarnation)
        else:
            return False
        try:
            return self._bus.post(subject, message)
        except BusDown:
            count(names.STREAM_UNSENT, role=str(self._role))
            return True
        except TooLarge:
            return False

    async def _leave_patiently(self) -> None:
        try:
            while True:
                await self._patient.wait()
                early_s = self._left_s + _PAUSE_S - self._clock.monotonic()
                if early_s > 0:
                    await self._clock.sleep(early_s)
                self._left_s = self._clock.monotonic()
                opened, self._opened = self._opened, []
                for letter in opened:
                    said, letter.items = letter.items, []
                    await self._send(letter, said)
                if not self._opened:
                    self._patient.clear()
                    self._leaving = False
        finally:
            self._leaving = False

    async def _send(self, letter: Letter, said: list[Said]) -> None:
        """Send what goes to one gateway, in order."""
        if len(said) == 1:
            await self._send_each(letter, said)
            return
        subject = subjects.token_batches(letter.gateway, letter.incarnation)
        for start in range(0, len(said), _MOST_ITEMS):
            part = said[start : start + _MOST_ITEMS]
            try:
                await self._publish(subject, StreamBatch(items=tuple(part)))
            except TooLarge:
                await self._send_each(letter, part)

    async def _send_each(self, letter: Letter, said: list[Said]) -> None:
        for nonce, message in said:
            subject = subjects.tokens(letter.gateway, letter.incarnation, nonce)
            await self._publish(subject, message)

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
