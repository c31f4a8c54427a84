"""The engine host's end of the line from SGLang's scheduler processes."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libs.engine.sgl.ranks import RankedRooms, all_figures, all_opened
from libs.sglang_plugins.ranks import rank_of
from proto.backend import BackendMessage, PlaneFigures, PlaneOpened, RoomClosed
from proto.base import decode, encode
from proto.errors import ErrorCode
from proto.host import PeerProbed, ProbePeer
from proto.kv import PeerAddress
from proto.pairs import PairProbe

__all__ = ["BackendLink"]

_PACKET_BYTES = 1 << 18


class BackendLink:
    """Listens for the KV backend; what it says is kept here.

    Packets wait in the socket until `drain` takes them, so a transfer that ended before a token
    was sent is known before the token is handled.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pdbus-"))
        self.path = str(self._folder / "backend")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.setblocking(False)
        self._peers: list[socket.socket] = []
        self._opened: dict[socket.socket, PlaneOpened] = {}
        self._figures: dict[socket.socket, PlaneFigures] = {}
        self._rooms = RankedRooms()
        self.opened: PlaneOpened | None = None
        """What the planes of all ranks have in common, with the address of the engine."""
        self._probes: dict[int, asyncio.Future[PairProbe]] = {}
        self._asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_room: Callable[[RoomClosed], None] | None = None

    @property
    def figures(self) -> PlaneFigures:
        """The newest counters of all ranks."""
        return all_figures(self._figures.values())

    def serve(self, loop: asyncio.AbstractEventLoop, on_room: Callable[[RoomClosed], None]) -> None:
        """Watch the line on a loop; `on_room` is told of every transfer that ended."""
        self._loop = loop
        self._on_room = on_room
        loop.add_reader(self._listener.fileno(), self.drain)
        for peer in self._peers:
            loop.add_reader(peer.fileno(), self.drain)

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Have the backend measure the way to a prefill engine."""
        self.drain()
        first = next((peer for peer in self._peers if self._is_first(peer)), None)
        if first is None:
            return PairProbe(code=ErrorCode.ENGINE_ERROR, detail="this engine has no data plane")
        self._asked += 1
        answer: asyncio.Future[PairProbe] = asyncio.get_running_loop().create_future()
        self._probes[self._asked] = answer
        try:
            first.send(encode(ProbePeer(number=self._asked, source=source)))
            return await answer
        except OSError as error:
            return PairProbe(code=ErrorCode.ENGINE_ERROR, detail=f"no line to SGLang: {error}")

    def drain(self) -> None:
        """Take all packets that have arrived."""
        self._accept()
        for peer in tuple(self._peers):
            while (packet := self._receive(peer)) is not None:
                self._take(_decode(packet), peer)

    def put_together(self, ranks: int) -> None:
        """Make one engine of its ranks, once all of them have come.

        Raises:
            ValueError: they are not `ranks` ranks of one engine.
        """
        if len(self._opened) != ranks:
            raise ValueError(f"{len(self._opened)} of {ranks} ranks have opened their data plane")
        self.opened = all_opened(self._opened.values())

    def hide(self) -> None:
        """Remove the address once all have come: a killed host leaves no file behind."""
        Path(self.path).unlink()
        self._folder.rmdir()

    def close(self) -> None:
        """Close the line."""
        for end in (self._listener, *self._peers):
            if self._loop is not None:
                self._loop.remove_reader(end.fileno())
            end.close()
        self._peers.clear()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            peer.setblocking(False)
            self._peers.append(peer)
            if self._loop is not None:
                self._loop.add_reader(peer.fileno(), self.drain)

    def _receive(self, peer: socket.socket) -> bytes | None:
        try:
            packet = peer.recv(_PACKET_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            packet = b""
        if packet:
            return packet
        if self._loop is not None:
            self._loop.remove_reader(peer.fileno())
        self._peers.remove(peer)
        peer.close()
        return None

    def _is_first(self, peer: socket.socket) -> bool:
        opened = self._opened.get(peer)
        return opened is not None and rank_of(opened.address.incarnation) == 0

    def _take(self, message: BackendMessage, peer: socket.socket) -> None:
        match message:
            case PlaneOpened():
                self._opened[peer] = message
            case PlaneFigures():
                self._figures[peer] = message
            case PeerProbed():
                answer = self._probes.pop(message.number, None)
                if answer is not None and not answer.done():
                    answer.set_result(message.found)
            case RoomClosed():
                whole = self._rooms.add(message, len(self._opened))
                if whole is not None and self._on_room is not None:
                    self._on_room(whole)


def _decode(packet: bytes) -> BackendMessage:
    kinds: Any = BackendMessage
    return decode(packet, kinds)
