"""Decode's side of a link to one prefill engine: asks for rooms, takes chunks, grants slabs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from libs.transfer.api import PlaneStats, RoomState, TransferFailure
from libs.transfer.links.probe import Prober
from libs.transfer.links.watch import ProcessWatch
from libs.transfer.reach import peek
from libs.transfer.rooms import FetchRoom
from libs.transfer.segment import Segment, SegmentError
from libs.transfer.ucx import Channel, LaneContext, Line, Loop, Operation, TransportError
from libs.transfer.ucx.lanes import carrier_of
from libs.transfer.wire import (
    CONTROL_TAG,
    FULL_TAG_MASK,
    Bye,
    ChunkHeader,
    Control,
    Credit,
    Hello,
    Ready,
    Refused,
    RefuseRoom,
    Stop,
    Welcome,
    data_tag,
    proof_of,
    unseal_chunk,
)
from proto.base import ProtocolError
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress

__all__ = ["Inbound"]

Bytes = npt.NDArray[np.uint8]

_DEATH_S = 0.2
"""How long a peer whose memory is gone may take to be gone itself."""


@dataclass(slots=True)
class _Slot:
    """A slab and the receive posted on it."""

    number: int
    slab: Bytes
    posted: Operation


class Inbound:
    """One UCX port of decode's, for one prefill incarnation; dies with it.

    Args:
        context: the lane.
        source: the peer.
        hello: builds the greeting from the address of this link's port, and what it shares.
        slab_bytes: length of each slab.
        slots: slabs granted to the peer.
        same_host: whether the peer's monotonic clock is ours.
        stats: counters of the plane.
        loop: the plane's thread.
        moved: called with each room that may have come further, or to its end.

    Raises:
        TransportError: there are no means left for a port.
    """

    def __init__(  # noqa: PLR0913 - wiring
        self,
        context: LaneContext,
        source: PeerAddress,
        *,
        hello: Callable[[bytes, int | None], Hello],
        slab_bytes: int,
        slots: int,
        same_host: bool,
        stats: PlaneStats,
        loop: Loop,
        moved: Callable[[FetchRoom], None],
    ) -> None:
        self.source = source
        self.lane = context.lane
        self.rooms: dict[Room, FetchRoom] = {}
        self.up = False
        self.ended: TransferFailure | None = None
        """Why the link is over; its owner then closes it."""
        self.polite = False
        """Whether the peer said that it would go."""
        self.unreadable = ""
        """Why the cma lane cannot be had with this peer; the link is over then."""
        self._pid = 0
        self.since = time.monotonic()
        self._stats, self._moved = stats, moved
        self._same_host = same_host
        self._loop = loop
        self._slab_bytes = slab_bytes
        self._watch: ProcessWatch | None = None
        self._waiting: list[Control] = []
        self._peer: Line | None = None
        self._port = context.port()
        self.fd = self._port.fd
        try:
            self._channel = Channel(self._port, CONTROL_TAG, FULL_TAG_MASK, stats)
            self._slots = deque(self._slot(number, slab_bytes) for number in range(slots))
        except TransportError:
            self._port.close()
            raise
        self._owed: list[int] = []
        self.prober = Prober(self._port, self.lane, carrier_of(self.lane), self._say)
        self._segment = self._share(slots) if same_host else None
        self._greeting = hello(self._port.address, self._segment and self._segment.number)
        self._door: Line | None = None
        try:
            self._door = self._port.connect(source.workers[self.lane], self._lost)
            self._channel.send(self._door, self._greeting)
        except TransportError as error:
            self._end(ErrorCode.PREFILL_LOST, str(error))

    def ask(self, room: FetchRoom) -> None:
        """Ask for a room, now or as soon as the link is up."""
        room.link = self
        room.carried_by(self.lane)
        self.rooms[room.room] = room
        self._say(room.want())
        if self.lane is Lane.CMA:
            room.look_ahead(self._slab_bytes)

    def stop(self, room: FetchRoom, failure: TransferFailure) -> None:
        """Tell the peer that a room was given up here."""
        if self.rooms.pop(room.room, None) is not None:
            self._say(Stop(room=room.room, code=failure.code, detail=failure.detail))

    def turn(self) -> tuple[bool, bool]:
        """Progress; return whether something came of it, and whether more is due at once."""
        try:
            return self._port.turn(self._work)
        except TransportError as error:
            self._end(ErrorCode.PREFILL_LOST, str(error))
            return True, True

    def give_up(self, detail: str) -> None:
        """End the link from this side, as if the peer were lost."""
        self._end(ErrorCode.PREFILL_LOST, detail)

    def say_bye(self) -> None:
        """Tell the peer that this plane closes."""
        self._say(Bye())

    @property
    def flushed(self) -> bool:
        """Whether everything said has left."""
        return self._channel.flushed

    def close(self) -> None:
        """Destroy the port; rooms that are still open fail."""
        failure = self.ended or TransferFailure(ErrorCode.CANCELLED, "the data plane closes")
        if self._watch is not None:
            self._watch.close()
        self._port.close()
        self._owed.clear()
        self.prober.fail(failure)
        self._slots.clear()
        self._segment = None
        for room in tuple(self.rooms.values()):
            room.fail(failure.code, failure.detail)
            self._moved(room)
        self.rooms.clear()

    def _slot(self, number: int, slab_bytes: int) -> _Slot:
        slab = np.empty(slab_bytes, np.uint8)
        return _Slot(number, slab, self._port.receive(slab, data_tag(number)))

    def _share(self, slots: int) -> Segment | None:
        """Return slabs in shared memory, on a lane that has such; else UCX carries the chunks."""
        if carrier_of(self.lane) is not Lane.SYSV:
            return None
        try:
            return Segment.make(slots, self._slab_bytes)
        except SegmentError:
            self._stats.unshared_links += 1
            return None

    def _say(self, message: Control) -> None:
        if self.ended:
            return
        if self._peer is None:
            self._waiting.append(message)
            return
        try:
            self._channel.send(self._peer, message)
        except TransportError as error:
            self._end(ErrorCode.PREFILL_LOST, str(error))

    def _work(self) -> bool:
        messages = self._channel.poll()
        for message in messages:
            self._hear(message)
        chunks = 0
        while self._slots and self._port.done(self._slots[0].posted):
            self._take(self._slots.popleft())
            chunks += 1
        probed = self.prober.poll()
        return bool(messages or chunks or probed)

    def _hear(self, message: Control) -> None:
        match message:
            case Welcome():
                self._welcome(message)
            case Refused() if message.nonce == self._greeting.nonce and not self.up:
                self._end(message.code, message.detail)
            case Ready():
                self._ready(message.room)
            case RefuseRoom() | Stop():
                self._give_up(message)
            case Bye():
                self.polite = True
                self._end(ErrorCode.PREFILL_LOST, "the prefill engine closed its data plane")
            case _:
                self._stats.malformed_messages += 1

    def _welcome(self, message: Welcome) -> None:
        if message.nonce != self._greeting.nonce or self.up or self._door is None:
            self._stats.malformed_messages += 1
            return
        if self.lane is Lane.CMA and not self._can_read(message):
            return
        self._pid = message.pid
        self._peer = self._port.connect(message.worker, self._lost)
        self._port.drop(self._door)
        self._door = None
        self.up = True
        if self._same_host:
            self._watch = ProcessWatch(self._loop, message.pid, self._died)
        waiting, self._waiting = self._waiting, []
        for earlier in waiting:
            self._say(earlier)

    def _can_read(self, message: Welcome) -> bool:
        """Whether the peer's memory can be read, and is the peer's."""
        try:
            seen = peek(message.pid, message.proof)
        except OSError as error:
            self.unreadable = f"lane cma is blocked: reading prefill's memory: {error.strerror}"
        else:
            if seen != proof_of(self._greeting.nonce):
                self.unreadable = "lane cma is blocked: prefill's memory is somebody else's"
        if self.unreadable:
            self._end(ErrorCode.LANE_REFUSED, self.unreadable)
        return not self.unreadable

    def _ready(self, room: Room) -> None:
        fetch = self.rooms.get(room)
        if fetch is not None:
            fetch.ready()
            self._moved(fetch)

    def _give_up(self, message: RefuseRoom | Stop) -> None:
        fetch = self.rooms.pop(message.room, None)
        if fetch is not None:
            fetch.fail(message.code, f"prefill: {message.detail}")
            self._moved(fetch)

    def _take(self, slot: _Slot) -> None:
        try:
            header = unseal_chunk(slot.slab)
        except ProtocolError:
            self._stats.malformed_messages += 1
            header = None
        fetch = self.rooms.get(header.room) if header else None
        if header and fetch and self._accept(fetch, header, slot):
            self._stats.bytes_received += header.payload
            self._stats.note_lane(self.lane, header.payload)
            self._after(fetch)
        else:
            self._stats.dropped_chunks += 1
        in_place = header is not None and header.entries > 0
        if fetch is not None and fetch.state is RoomState.DONE:
            # Whoever waits for the room hears of it first.
            self._loop.post(partial(self._post_again, slot, in_place=in_place))
        else:
            self._post_again(slot, in_place=in_place)

    def _post_again(self, slot: _Slot, *, in_place: bool) -> None:
        """Post a slab again, and grant it now or with others."""
        if self.ended is not None:
            return
        try:
            slot.posted = self._port.receive(slot.slab, data_tag(slot.number))
        except TransportError as error:
            self._end(ErrorCode.PREFILL_LOST, str(error))
            return
        self._slots.append(slot)
        self._owed.append(slot.number)
        self._loop.touch(self)
        # Half of the slabs may wait for company: prefill still has the other half. Not where the
        # chunk is still in prefill's pages.
        if in_place or len(self._owed) * 2 >= len(self._slots):
            self._grant()

    def _grant(self) -> None:
        if self._owed:
            self._say(Credit(slots=tuple(self._owed)))
            self._owed.clear()

    def _accept(self, fetch: FetchRoom, header: ChunkHeader, slot: _Slot) -> bool:
        shared = None
        if header.shared:
            if self._segment is None or header.payload > self._slab_bytes:
                self._stats.malformed_messages += 1
                return False
            shared = self._segment.slabs[slot.number]
        try:
            return fetch.accept(
                header, slot.slab, same_clock=self._same_host, pid=self._pid, shared=shared
            )
        except OSError as error:
            # The memory of a process that dies goes first; its death is told a moment later.
            detail = f"prefill's memory cannot be read: {error.strerror}"
            self._loop.later(_DEATH_S, partial(self._unread, fetch, detail))
            return False

    def _unread(self, fetch: FetchRoom, detail: str) -> None:
        if self.rooms.get(fetch.room) is fetch:
            fetch.fail(ErrorCode.KV_TRANSFER_FAILED, detail)
            self._after(fetch)

    def _after(self, fetch: FetchRoom) -> None:
        if fetch.state is RoomState.DONE:
            self.rooms.pop(fetch.room, None)
        elif fetch.failure is not None:
            if fetch.failure.code is ErrorCode.TRANSFER_CORRUPT:
                self._stats.corrupt_rooms += 1
            self.stop(fetch, fetch.failure)
        self._moved(fetch)

    def _died(self) -> None:
        """Take what the peer had sent before it died, then end."""
        if self.ended is None:
            self.turn()
            self._lost()

    def _lost(self) -> None:
        self._end(ErrorCode.PREFILL_LOST, "the prefill engine was lost")

    def _end(self, code: ErrorCode, detail: str) -> None:
        if self.ended is None:
            self.ended = TransferFailure(code, detail)
