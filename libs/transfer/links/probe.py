"""Measuring a link with messages of three sizes, over the very port that carries KV.

Decode asks for a message of so many bytes and takes the time until it is there. Prefill answers
only so often, so that a peer cannot make it busy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libs.transfer.api import TransferFailure
from libs.transfer.ucx import Line, Operation, Port
from libs.transfer.wire import PROBE_MOST, PROBE_TAG, ProbeAsk
from proto.errors import ErrorCode
from proto.kv import Lane
from proto.pairs import PairProbe, SizeProbe

__all__ = ["SIZES", "Answers", "Prober"]

Bytes = npt.NDArray[np.uint8]
Done = Callable[[PairProbe], None]

SIZES = ((1 << 10, 5), (64 << 10, 3), (4 << 20, 3))
"""Bytes of a message, and how often it is asked for; the first try of each warms the way up."""
_ANSWERS_PER_S = 40
"""A whole probe is eleven asks."""


@dataclass(slots=True)
class _Ask:
    """One message that was asked for."""

    buffer: Bytes
    posted: Operation
    asked: float


class Prober:
    """Decode's end: one probe of one link at a time; on the plane's thread.

    Args:
        port: the link's.
        lane: what the link runs on.
        carrier: what carries its messages, which are all that a probe measures.
        say: sends a control message, now or when the link is up.
    """

    def __init__(
        self, port: Port, lane: Lane, carrier: Lane, say: Callable[[ProbeAsk], None]
    ) -> None:
        self._port = port
        self._lane = lane
        self._carrier = carrier
        self._say = say
        self._waiting: list[Done] = []
        self._plan: deque[int] = deque()
        self._best: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._ask: _Ask | None = None
        self._since = 0.0

    @property
    def active(self) -> bool:
        """Whether somebody waits for figures."""
        return bool(self._waiting)

    def begin(self, done: Done) -> None:
        """Probe; who asks while a probe runs gets the figures of that one."""
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return
        self._since = time.monotonic()
        self._best.clear()
        self._tries.clear()
        self._plan = deque(size for size, tries in SIZES for _ in range(tries))
        if self._ask is None:
            self._next()

    def poll(self) -> bool:
        """Take what has arrived; return whether something has.

        Raises:
            TransportError: the peer is lost.
        """
        ask = self._ask
        if ask is None or not self._port.done(ask.posted):
            return False
        self._ask = None
        if self.active:
            self._note(len(ask.buffer), time.monotonic() - ask.asked)
            self._next()
        return True

    def expire(self, now: float, within_s: float) -> None:
        """Give a probe up that has taken too long."""
        if self.active and now - self._since > within_s:
            detail = f"no answer to a probe within {within_s:g} s"
            self.fail(TransferFailure(ErrorCode.DEADLINE, detail))

    def fail(self, failure: TransferFailure) -> None:
        """Tell whoever waits that there will be no figures.

        A receive that is still posted stays so: its message may come yet.
        """
        self._plan.clear()
        self._tell(PairProbe(lane=self._lane, code=failure.code, detail=failure.detail))

    def _next(self) -> None:
        if not self._plan:
            self._tell(PairProbe(lane=self._lane, sizes=self._sizes()))
            return
        buffer = np.empty(self._plan.popleft(), np.uint8)
        posted = self._port.receive(buffer, PROBE_TAG)
        self._ask = _Ask(buffer, posted, time.monotonic())
        self._say(ProbeAsk(size=len(buffer)))

    def _note(self, size: int, seconds: float) -> None:
        # A message that was asked for by a probe that was given up belongs to no size of this one.
        self._tries[size] = self._tries.get(size, 0) + 1
        if self._tries[size] > 1:
            self._best[size] = min(seconds, self._best.get(size, seconds))

    def _sizes(self) -> tuple[SizeProbe, ...]:
        return tuple(
            SizeProbe(size_bytes=size, seconds=best, lane=self._carrier)
            for size, best in sorted(self._best.items())
        )

    def _tell(self, found: PairProbe) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(found)


class Answers:
    """Prefill's end: messages of the size that was asked for, within reason."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._sending: deque[tuple[Operation, Bytes]] = deque()
        self._times: deque[float] = deque(maxlen=_ANSWERS_PER_S)

    def answer(self, line: Line, ask: ProbeAsk) -> bool:
        """Send what was asked for; return False if that is more than a peer may have.

        Raises:
            TransportError: the peer is lost.
        """
        now = time.monotonic()
        often = len(self._times) == _ANSWERS_PER_S and now - self._times[0] < 1.0
        if often or ask.size > PROBE_MOST or len(self._sending) > 1:
            return False
        self._times.append(now)
        data = np.zeros(ask.size, np.uint8)
        self._sending.append((self._port.send(line, data, PROBE_TAG), data))
        return True

    def collect(self) -> bool:
        """Let go of what has left; return whether anything has.

        Raises:
            TransportError: the peer is lost.
        """
        gone = False
        while self._sending and self._port.done(self._sending[0][0]):
            self._sending.popleft()
            gone = True
        return gone
