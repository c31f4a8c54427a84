from __future__ import annotations

import pytest

from libs.transfer.ucx.lanes import choose_lane, excluded_lanes, host_identity, lane_options
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


@pytest.mark.parametrize(
    ("lane", "allowed", "fits"),
    [
        (S, None, True),
        (S, "", True),
        (S, "all", True),
        (S, "sysv,self", True),
        (S, "tcp", False),
        (S, "sm,tcp", True),
        (S, "^sm", False),
        (S, "^tcp", True),
        (P, "shm", True),
        (T, "sm", False),
        (T, "^sysv,tcp", False),
        (T, "rc, tcp", True),
    ],
)
def test_the_operator_may_exclude_lanes(lane: Lane, allowed: str | None, fits: bool) -> None:
    """UCX_TLS is obeyed, in all its forms; a lane that it excludes alone is a typed error."""
    environment = {} if allowed is None else {"UCX_TLS": allowed}
    if fits:
        assert excluded_lanes((lane,), environment) == {}
        return
    with pytest.raises(PdbusError) as caught:
        excluded_lanes((lane,), environment)
    assert caught.value.code is ErrorCode.LANE_REFUSED
    assert f"UCX_TLS={allowed}" in caught.value.detail


def test_other_lanes_stay_when_one_is_excluded() -> None:
    """What is left is used, and what is not says which variable was the cause."""
    found = excluded_lanes((S, P, T), {"UCX_TLS": "tcp"})
    assert set(found) == {S, P}
    assert found[S] == "lane sysv is excluded by UCX_TLS=tcp in the environment"


@pytest.mark.parametrize("allowed", ["tpc", "tcp,tpc", "^tpc", "tcp;sysv"])
def test_a_misspelt_transport_is_refused(allowed: str) -> None:
    """UCX overlooks names that it does not know; pdbus names them and does not start."""
    with pytest.raises(PdbusError) as caught:
        excluded_lanes((S, T), {"UCX_TLS": allowed})
    assert caught.value.code is ErrorCode.LANE_REFUSED
    assert f"UCX_TLS={allowed}" in caught.value.detail
    assert "names no transport" in caught.value.detail


@pytest.mark.parametrize("lane", [S, P])
def test_shared_memory_keeps_its_failure_detection(lane: Lane) -> None:
    """A shared-memory context knows one transport, and UCX watches its peers."""
    options = lane_options(lane, "eth0")
    assert options["TLS"] == f"{lane},self"
    assert options["MM_ERROR_HANDLING"] == "y"
    assert options["RNDV_THRESH"] == "inf"
    assert "NET_DEVICES" not in options


def test_tcp_may_be_bound_to_an_interface() -> None:
    """The interface is passed on, and left to UCX where none is named."""
    assert lane_options(T, "eth0")["NET_DEVICES"] == "eth0"
    assert "NET_DEVICES" not in lane_options(T, None)


@pytest.mark.parametrize("lane", [Lane.CMA, Lane.RC, Lane.CUDA_IPC, Lane.LOCAL, Lane.UNKNOWN])
def test_a_lane_that_cannot_run_alone_is_refused(lane: Lane) -> None:
    """There is no silent substitute for a lane."""
    with pytest.raises(PdbusError) as caught:
        lane_options(lane, None)
    assert caught.value.code is ErrorCode.LANE_REFUSED


def test_the_host_identity_is_stable() -> None:
    """Two looks from one process agree."""
    assert host_identity() == host_identity()
    assert len(host_identity()) == 16
