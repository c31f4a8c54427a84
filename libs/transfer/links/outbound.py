"""Prefill's side of a link to one decode engine: hears wants, spends credits, sends chunks."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from libs.transfer.api import TransferFailure
from libs.transfer.links.admission import Admission
from libs.transfer.links.parts import Parts
from libs.transfer.links.probe import Answers
from libs.transfer.links.watch import ProcessWatch
from libs.transfer.rooms import Filled, OfferRoom
from libs.transfer.segment import Segment, SegmentError
from libs.transfer.ucx import Channel, LaneContext, Line, Operation, TransportError
from libs.transfer.wire import (
    CONTROL_TAG,
    FULL_TAG_MASK,
    Bye,
    Control,
    Credit,
    Hello,
    ProbeAsk,
    Ready,
    Refused,
    RefuseRoom,
    Stop,
    Want,
    Welcome,
    data_tag,
    proof_of,
)
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane

__all__ = ["Outbound", "Prefill"]

Bytes = npt.NDArray[np.uint8]

_SEND_SLABS = 3
"""Chunks gathered ahead of what the receiver has taken out of shared memory."""


class Prefill(Protocol):
    """What a link tells the plane."""

    def wanted(self, link: Outbound, want: Want) -> None:
        """Decode asks for a room."""
        ...

    def stopped(self, link: Outbound, room: Room, failure: TransferFailure) -> None:
        """Decode has given a room up."""
        ...

    def moved(self, offer: OfferRoom) -> None:
        """An offer may have come further, or to its end."""
        ...

    @property
    def admission(self) -> Admission[Outbound]:
        """Whose chunks may be under way."""
        ...


@dataclass(frozen=True, slots=True)
class _Lent:
    """A chunk on its way, and the slab that it needs until it is taken."""

    offer: OfferRoom
    leased: bool
    """Whether it is under way until decode gives its slot back."""
    slab: Bytes | None


class Outbound:
    """One UCX port of prefill's, for one decode incarnation; dies with it.

    Args:
        context: the lane.
        hello: the greeting that asked for the link.
        refusal: why it is refused, if it is.
        parts: what the plane is made of.
        prefill: who owns the rooms.

    Raises:
        TransportError: there are no means left for a port.
    """

    def __init__(
        self,
        context: LaneContext,
        hello: Hello,
        refusal: TransferFailure | None,
        parts: Parts,
        prefill: Prefill,
    ) -> None:
        self.hello = hello
        self.lane = context.lane
        self.refusal = refusal
        self.ended: TransferFailure | None = None
        """Why the link is over; its owner then closes it."""
        self.polite = False
        """Whether the peer said that it would go."""
        self.since = time.monotonic()
        self._stats = parts.stats
        self._prefill = prefill
        self._credits: deque[int] = deque(() if refusal else range(hello.slots))
        self._granted = set(self._credits)
        self._queue: deque[OfferRoom] = deque()
        self._slabs: list[Bytes] = []
        self._made = 0
        self._shared = self._join(parts)
        """The slabs of decode's that we may write, by their slots; none where none are shared."""
        self._sending: deque[tuple[Operation, _Lent]] = deque()
        self._out = 0
        """Chunks under way."""
        self._lent: dict[int, _Lent] = {}
        """On the cma lane: chunks that decode has not taken yet, by their slot."""
        self._proof = np.array([proof_of(hello.nonce)], np.uint64)
        self._port = context.port()
        self.fd = self._port.fd
        try:
            self._channel = Channel(self._port, CONTROL_TAG, FULL_TAG_MASK, parts.stats)
        except TransportError:
            self._port.close()
            raise
        self._answers = Answers(self._port)
        self._peer: Line | None = None
        try:
            self._peer = self._port.connect(hello.worker, self._lost)
            self._channel.send(self._peer, self._answer())
        except TransportError as error:
            self._end(ErrorCode.DECODE_LOST, str(error))
        self._watch: ProcessWatch | None = None
        if hello.host == parts.host:
            self._watch = ProcessWatch(parts.loop, hello.pid, self._died)

    @property
    def flushed(self) -> bool:
        """Whether everything said has left."""
        return self._channel.flushed

    def match(self, offer: OfferRoom, want: Want) -> None:
        """Serve a want from an offer."""
        offer.link = self
        if offer.match(want, self.lane):
            if not offer.has_chunk:
                self._say(Ready(room=want.room))
            self.queue(offer)
        self._prefill.moved(offer)

    def queue(self, offer: OfferRoom) -> None:
        """Give an offer with something to send its place in the round."""
        if offer.has_chunk and offer not in self._queue:
            self._queue.append(offer)
            self._pump()

    def refuse(self, room: Room, failure: TransferFailure) -> None:
        """Tell decode that a want will not be served."""
        self._say(RefuseRoom(room=room, code=failure.code, detail=failure.detail))

    def stop(self, offer: OfferRoom, failure: TransferFailure) -> None:
        """Tell decode that a room was given up here."""
        self._say(Stop(room=offer.room, code=failure.code, detail=failure.detail))

    def turn(self) -> tuple[bool, bool]:
        """Progress; return whether something came of it, and whether more is due at once."""
        try:
            return self._port.turn(self._work)
        except TransportError as error:
            self._end(ErrorCode.DECODE_LOST, str(error))
            return True, True

    def replaced(self) -> None:
        """End the link because the same engine has greeted again."""
        self._end(ErrorCode.DECODE_LOST, "the decode engine connected anew")

    def say_bye(self) -> None:
        """Tell the peer that this plane closes."""
        self._say(Bye())

    def close(self) -> None:
        """Destroy the port and all that was being sent."""
        if self._watch is not None:
            self._watch.close()
        self._port.close()
        self._prefill.admission.give(self._out)
        self._prefill.admission.leave(self)
        self._out = 0
        self._sending.clear()
        self._lent.clear()
        self._queue.clear()
        self._shared.clear()

    def _answer(self) -> Welcome | Refused:
        nonce = self.hello.nonce
        if self.refusal is None:
            proof = self._proof.ctypes.data if self.lane is Lane.CMA else 0
            return Welcome(nonce=nonce, worker=self._port.address, pid=os.getpid(), proof=proof)
        return Refused(nonce=nonce, code=self.refusal.code, detail=self.refusal.detail)

    def _say(self, message: Control) -> None:
        if self.ended or self._peer is None:
            return
        try:
            self._channel.send(self._peer, message)
        except TransportError as error:
            self._end(ErrorCode.DECODE_LOST, str(error))

    def _work(self) -> bool:
        messages = self._channel.poll()
        for message in messages:
            self._hear(message)
        sent = 0
        while self._sending and self._port.done(self._sending[0][0]):
            _, lent = self._sending.popleft()
            if not lent.leased:
                self._taken(lent)
            sent += 1
        answered = self._answers.collect()
        return self._pump() or bool(messages or sent or answered)

    def _hear(self, message: Control) -> None:
        match message:
            case Want():
                self._prefill.wanted(self, message)
            case Credit():
                self._grant(message.slots)
            case Stop():
                failure = TransferFailure(message.code, f"decode: {message.detail}")
                self._prefill.stopped(self, message.room, failure)
            case ProbeAsk() if self._peer is not None and self.refusal is None:
                if not self._answers.answer(self._peer, message):
                    self._stats.malformed_messages += 1
            case Bye():
                self.polite = True
                self._end(ErrorCode.DECODE_LOST, "the decode engine closed its data plane")
            case _:
                self._stats.malformed_messages += 1

    def _grant(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            if slot < self.hello.slots and slot not in self._granted:
                self._granted.add(slot)
                self._credits.append(slot)
                lent = self._lent.pop(slot, None)
                if lent is not None:
                    self._taken(lent)

    def _taken(self, lent: _Lent) -> None:
        """Note that nothing of a chunk is needed here any more."""
        self._out -= 1
        self._prefill.admission.give()
        if lent.slab is not None:
            self._slabs.append(lent.slab)
        lent.offer.sent()
        self._prefill.moved(lent.offer)

    def _pump(self) -> bool:
        """Send chunks, one of each room in turn, while there are credits and slabs."""
        sent = waits = False
        peer = self._peer
        while peer and self._queue and self._credits and not self.ended:
            slab = self._slab()
            if slab is None:
                break
            if not self._prefill.admission.take(self):
                if not self._shared:
                    self._slabs.append(slab)
                waits = True
                break
            offer = self._queue.popleft()
            filled = offer.fill(slab, shared=bool(self._shared))
            if not self._shared and (filled is None or not filled.uses_slab):
                self._slabs.append(slab)
            if filled is None:
                self._prefill.admission.give()
                self._prefill.moved(offer)
                continue
            kept = slab if filled.uses_slab else None
            self._send(peer, filled, _Lent(offer, filled.leased, kept))
            if offer.has_chunk:
                self._queue.append(offer)
            sent = True
        if not waits:
            self._prefill.admission.leave(self)
        return sent

    def _send(self, peer: Line, chunk: Filled, lent: _Lent) -> None:
        slot = self._credits.popleft()
        self._granted.discard(slot)
        try:
            operation = self._port.send(peer, chunk.message, data_tag(slot))
        except TransportError as error:
            self._prefill.admission.give()
            self._end(ErrorCode.DECODE_LOST, str(error))
            return
        self._out += 1
        self._sending.append((operation, lent))
        if lent.leased:
            self._lent[slot] = lent
        self._stats.bytes_sent += chunk.payload
        self._stats.note_lane(self.lane, chunk.payload)
        self._prefill.moved(lent.offer)

    def _join(self, parts: Parts) -> list[Bytes]:
        """Return the slabs that decode shares, if it does."""
        hello = self.hello
        if hello.segment is None or self.refusal or hello.host != parts.host:
            return []
        try:
            segment = Segment.join(hello.segment, hello.pid, hello.slots, hello.slab_bytes)
        except SegmentError:
            self._stats.unshared_links += 1
            return []
        return segment.slabs

    def _slab(self) -> Bytes | None:
        if self._shared:
            return self._shared[self._credits[0]]
        if self._slabs:
            return self._slabs.pop()
        if self._made == _SEND_SLABS:
            return None
        self._made += 1
        return np.empty(self.hello.slab_bytes, np.uint8)

    def _died(self) -> None:
        """Hear what the peer had said before it died, then end."""
        if self.ended is None:
            self.turn()
            self._lost()

    def _lost(self) -> None:
        self._end(ErrorCode.DECODE_LOST, "the decode engine was lost")

    def _end(self, code: ErrorCode, detail: str) -> None:
        if self.ended is None:
            self.ended = TransferFailure(code, detail)
