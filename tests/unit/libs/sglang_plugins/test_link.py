from __future__ import annotations

import socket
from pathlib import Path

from libs.sglang_plugins.link import HostLink
from proto.backend import BackendMessage, PlaneFigures, RoomClosed
from proto.base import decode
from proto.ids import Room


def _listen(path: Path) -> tuple[socket.socket, HostLink, socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    link = HostLink(str(path))
    peer, _ = listener.accept()
    peer.setblocking(False)
    return listener, link, peer


def _packets(peer: socket.socket) -> list[object]:
    found = []
    while True:
        try:
            packet = peer.recv(1 << 16)
        except BlockingIOError:
            return found
        if not packet:
            return found
        found.append(decode(packet, BackendMessage))


def test_counters_are_sent_when_they_change(tmp_path: Path):
    """The same counters twice are one packet."""
    listener, link, peer = _listen(tmp_path / "s")
    with listener, peer:
        link.figures(0, 0, 0)
        link.figures(1, 0, 0)
        link.figures(1, 0, 0)
        link.figures(1, 2, 0)
        link.figures(1, 2, 3)
        assert _packets(peer) == [
            PlaneFigures(open_rooms=1, dropped_chunks=0),
            PlaneFigures(open_rooms=1, dropped_chunks=2),
            PlaneFigures(open_rooms=1, dropped_chunks=2, unshared_links=3),
        ]
        link.close()


def test_a_full_socket_delays_messages_and_loses_none(tmp_path: Path):
    """A host that does not read cannot stop the scheduler, and gets all in order later."""
    listener, link, peer = _listen(tmp_path / "s")
    with listener, peer:
        for number in range(1, 2001):
            link.send(RoomClosed(room=Room(number), detail="x" * 500))
        seen: list[object] = []
        while len(seen) < 2000:
            got = _packets(peer)
            assert got
            seen += got
            link.flush()
        assert [message.room for message in seen] == list(range(1, 2001))
        link.close()


def test_a_host_that_is_gone_is_no_fault(tmp_path: Path):
    """The scheduler is about to be killed with its host; it must not fail before."""
    listener, link, peer = _listen(tmp_path / "s")
    with listener:
        peer.close()
        link.send(RoomClosed(room=Room(1)))
        link.send(RoomClosed(room=Room(2)))
        link.close()
