from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.engine.sgl.link import BackendLink
from libs.sglang_plugins.link import HostLink
from libs.sglang_plugins.ranks import gather, incarnation_of
from proto.backend import PlaneFigures, PlaneOpened, RoomClosed
from proto.ids import Room
from proto.kv import PeerAddress

OPENED = PlaneOpened(
    address=PeerAddress(incarnation="a" * 16, host="h", workers={"tcp": b"x" * 300}),
    kv_dtype="float32",
    kv_layout="nhd",
    page_size=16,
    page_bytes=8192,
    row_bytes=1600,
    buffers=4,
)


@pytest.fixture
def link() -> Iterator[BackendLink]:
    """Return a link made before there is a loop, as the host makes it."""
    made = BackendLink()
    yield made
    made.close()


def test_the_opening_is_known_without_a_loop(link: BackendLink):
    """SGLang starts before any loop runs; what was sent meanwhile waits in the socket."""
    sender = HostLink(link.path)
    sender.send(OPENED)
    link.drain()
    link.put_together(1)
    assert link.opened == OPENED
    path = Path(link.path)
    link.hide()
    assert not path.parent.exists()
    sender.send(RoomClosed(room=Room(1)))
    sender.close()


async def test_rooms_and_counters_arrive_on_the_loop(link: BackendLink):
    """Each closed room is told once; counters are kept."""
    before = await asyncio.to_thread(HostLink, link.path)
    before.send(OPENED)
    link.drain()
    closed: list[RoomClosed] = []
    link.serve(asyncio.get_running_loop(), closed.append)
    later = await asyncio.to_thread(HostLink, link.path)
    later.send(RoomClosed(room=Room(1)))
    before.send(RoomClosed(room=Room(2)))
    before.figures(3, 4, 5)
    async with asyncio.timeout(5):
        while len(closed) < 2 or link.figures.open_rooms == 0:
            await asyncio.sleep(0.01)
    assert {message.room for message in closed} == {1, 2}
    assert link.figures == PlaneFigures(open_rooms=3, dropped_chunks=4, unshared_links=5)
    before.close()
    later.close()


async def test_a_dead_scheduler_does_not_spin_the_loop(link: BackendLink):
    """An end that closed is forgotten."""
    link.serve(asyncio.get_running_loop(), lambda _message: None)
    sender = await asyncio.to_thread(HostLink, link.path)
    sender.send(OPENED)
    await asyncio.sleep(0.05)
    sender.close()
    await asyncio.sleep(0.05)
    assert link._peers == []


def _rank(number: int) -> PlaneOpened:
    address = replace(OPENED.address, incarnation=incarnation_of("a" * 16, number))
    return replace(OPENED, address=address)


async def test_ranks_speak_as_one_engine(link: BackendLink):
    """Two schedulers open one engine, in whatever order they come, and close a room together."""
    ends = [await asyncio.to_thread(HostLink, link.path) for _ in range(2)]
    for end, number in zip(ends, (1, 0), strict=True):
        end.send(_rank(number))
    link.drain()
    link.put_together(2)
    assert link.opened is not None
    assert link.opened.address == gather([_rank(0).address, _rank(1).address])
    closed: list[RoomClosed] = []
    link.serve(asyncio.get_running_loop(), closed.append)
    ends[0].send(RoomClosed(room=Room(1)))
    ends[0].figures(1, 2, 1)
    link.drain()
    assert closed == []
    ends[1].send(RoomClosed(room=Room(1)))
    ends[1].figures(1, 3, 0)
    link.drain()
    assert [message.room for message in closed] == [1]
    assert link.figures == PlaneFigures(open_rooms=1, dropped_chunks=5, unshared_links=1)
    for end in ends:
        end.close()


async def test_the_first_rank_is_asked_to_probe(link: BackendLink):
    """Ranks come in any order; an address leads to the plane of the first one."""
    ends = [await asyncio.to_thread(HostLink, link.path) for _ in range(2)]
    asked: list[int] = []
    for end, number in zip(ends, (1, 0), strict=True):
        end.send(_rank(number))
        end.listen(lambda _ask, rank=number: asked.append(rank))
    link.serve(asyncio.get_running_loop(), lambda _message: None)
    probing = asyncio.create_task(link.probe(OPENED.address))
    async with asyncio.timeout(5):
        while not asked:
            await asyncio.sleep(0.01)
    assert asked == [0]
    probing.cancel()
    for end in ends:
        end.close()


def test_an_engine_without_all_its_ranks_does_not_start(link: BackendLink):
    """A rank whose plane did not open is missed before any request."""
    sender = HostLink(link.path)
    sender.send(_rank(0))
    link.drain()
    with pytest.raises(ValueError, match="1 of 2 ranks"):
        link.put_together(2)
    sender.close()
