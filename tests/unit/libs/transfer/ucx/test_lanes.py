from __future__ import annotations

import pytest

from libs.transfer.ucx.lanes import choose_lane, host_identity, lane_options
from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane, PeerAddress

S, P, T = Lane.SYSV, Lane.POSIX, Lane.TCP


@pytest.mark.parametrize(
    ("mine", "theirs", "same_host", "chosen"),
    [
        ((S, T), (S, T), True, S),
        ((S, T), (S, T), False, T),
        ((T, S), (S, T), True, T),
        ((S, P, T), (P, T), True, P),
        ((S, P), (S, P), False, None),
        ((S,), (T,), True, None),
        ((S, T), (), True, None),
    ],
)
def test_the_first_lane_that_reaches_the_peer_is_chosen(
    mine: tuple[Lane, ...], theirs: tuple[Lane, ...], same_host: bool, chosen: Lane | None
) -> None:
    """Own order decides; shared memory counts only on the same host."""
    peer = PeerAddress(
        incarnation="i",
        host="here" if same_host else "there",
        workers={str(lane): b"w" for lane in theirs},
    )
    assert choose_lane(mine, "here", peer) is chosen


@pytest.mark.parametrize("lane", [S, P])
def test_shared_memory_keeps_its_failure_detection(lane: Lane) -> None:
    """A shared-memory context knows one transport, and UCX watches its peers."""
    options = lane_options(lane, "eth0")
    assert options["TLS"] == f"{lane},self"
    assert options["MM_ERROR_HANDLING"] == "y"
    assert options["RNDV_THRESH"] == "inf"
    assert {f"{lane.upper()}_SEG_SIZE", f"{lane.upper()}_FIFO_SIZE"} <= options.keys()
    assert "NET_DEVICES" not in options


def test_tcp_may_be_bound_to_an_interface() -> None:
    """The interface is passed on, and left to UCX where none is named."""
    assert lane_options(T, "eth0")["NET_DEVICES"] == "eth0"
    assert "NET_DEVICES" not in lane_options(T, None)


@pytest.mark.parametrize("lane", [Lane.RC, Lane.CUDA_IPC, Lane.LOCAL, Lane.UNKNOWN])
def test_a_lane_that_cannot_run_alone_is_refused(lane: Lane) -> None:
    """There is no silent substitute for a lane."""
    with pytest.raises(PdbusError) as caught:
        lane_options(lane, None)
    assert caught.value.code is ErrorCode.LANE_REFUSED


def test_the_host_identity_is_stable() -> None:
    """Two looks from one process agree."""
    assert host_identity() == host_identity()
    assert len(host_identity()) == 16
