from __future__ import annotations

import pytest
from msgspec.structs import replace

from libs.engine.sgl.ranks import RankedRooms, all_opened
from libs.sglang_plugins.ranks import incarnation_of
from proto.backend import PlaneOpened, RoomClosed
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress, TransferReport

ROOM = Room(7)
REPORT = TransferReport(
    room=ROOM,
    lane=Lane.SYSV,
    expected_bytes=100,
    moved_bytes=100,
    chunks=2,
    queue_s=0.1,
    wire_s=0.4,
    copy_s=0.2,
    total_s=0.5,
)
DONE = RoomClosed(room=ROOM, report=REPORT, queue_s=1.0, forward_s=2.0)
FAILED = RoomClosed(room=ROOM, code=ErrorCode.KV_TRANSFER_FAILED, detail="first")


def _opened(rank: int, page_bytes: int = 64) -> PlaneOpened:
    return PlaneOpened(
        address=PeerAddress(incarnation=incarnation_of("a" * 16, rank), host="h"),
        kv_dtype="float32",
        kv_layout="nhd",
        page_size=16,
        page_bytes=page_bytes,
        row_bytes=8,
        buffers=4,
    )


def test_bytes_add_up_and_times_do_not() -> None:
    """Ranks move their parts at the same time: the slowest tells how long it took."""
    rooms = RankedRooms()
    slower = replace(REPORT, moved_bytes=90, wire_s=0.9, total_s=1.0, chunks=3)
    assert rooms.add(DONE, 2) is None
    whole = rooms.add(replace(DONE, report=slower, forward_s=3.0), 2)
    assert whole is not None
    assert whole.report == replace(
        REPORT, expected_bytes=200, moved_bytes=190, chunks=5, wire_s=0.9, total_s=1.0
    )
    assert (whole.queue_s, whole.forward_s, whole.code) == (1.0, 3.0, None)


def test_ranks_on_two_lanes_have_no_single_one() -> None:
    """A report never names a lane that carried only a part."""
    rooms = RankedRooms()
    rooms.add(DONE, 2)
    whole = rooms.add(replace(DONE, report=replace(REPORT, lane=Lane.TCP)), 2)
    assert whole is not None
    assert whole.report is not None
    assert whole.report.lane is Lane.UNKNOWN


@pytest.mark.parametrize("order", [(FAILED, DONE, FAILED), (DONE, FAILED, DONE)])
def test_the_first_failure_is_told_once_and_at_once(order: tuple[RoomClosed, ...]) -> None:
    """Nobody waits for the other ranks of a broken transfer, and nobody hears of it again."""
    rooms = RankedRooms()
    told = [rooms.add(part, 3) for part in order]
    place = order.index(FAILED)
    assert told[place] == FAILED
    assert [whole for whole in told if whole is not None] == [FAILED]


def test_a_room_is_forgotten_when_all_have_spoken() -> None:
    """The same room number begins anew after its last rank has told of it."""
    rooms = RankedRooms()
    for part in (FAILED, DONE):
        rooms.add(part, 2)
    assert rooms.add(DONE, 2) is None
    assert rooms.add(DONE, 2) is not None


def test_an_engine_of_one_rank_is_told_as_it_is() -> None:
    """The usual case changes nothing."""
    assert RankedRooms().add(DONE, 1) is DONE
    assert all_opened([_opened(0)]) == _opened(0)


def test_ranks_of_different_memory_are_no_engine() -> None:
    """Pages of another shape are found before the address is published."""
    with pytest.raises(ValueError, match=r"a{16}\.1 has memory of another shape"):
        all_opened([_opened(1, page_bytes=32), _opened(0)])
