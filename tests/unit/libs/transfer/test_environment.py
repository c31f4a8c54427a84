from __future__ import annotations

import pytest

from libs.transfer.environment import excluded_lanes
from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane

S, P, T = Lane.SYSV, Lane.POSIX, Lane.TCP


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
