"""The way between two planes is measured over the lane that carries KV, or refused before it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.integration.transfer.peer import Peer

pytestmark = pytest.mark.integration


def two(start: Callable[..., Peer], mine: dict, theirs: dict, **tls: str) -> tuple[Peer, Peer]:
    """Start decode and prefill; `tls` sets UCX_TLS of one of them."""
    sides = []
    for name, settings in (("decode", mine), ("prefill", theirs)):
        environment = {"UCX_TLS": tls[name]} if name in tls else {}
        sides.append(start(settings=settings, environment=environment))
    return sides[0].begun(), sides[1].begun()


@pytest.mark.parametrize("lane", ["sysv", "posix", "tcp", "cma"])
def test_a_probe_measures_each_size_on_the_lane_in_use(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """UCX-01: latency and bandwidth come with the lane; transfers go on beside the probe."""
    decode, prefill = two(start, {"lanes": [lane]}, {"lanes": [lane]})
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    found = decode("probe", source=prefill.address)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[1], first_page=0, last=True, row=0)
    assert decode("wait", side="fetch", room=room)["report"]["lane"] == lane
    assert (found["lane"], found["code"]) == (lane, None)
    sizes = found["sizes"]
    assert [one["size_bytes"] for one in sizes] == [1 << 10, 64 << 10, 4 << 20]
    # On cma pages are read out of memory; messages take sysv, and it is they that are measured.
    assert {one["lane"] for one in sizes} == {"sysv" if lane == "cma" else lane}
    assert all(one["seconds"] > 0 for one in sizes)
    assert decode("probe", source=prefill.address)["code"] is None
    assert prefill("stats")["malformed_messages"] == 0
    print(lane, [f"{one['size_bytes']} B: {one['seconds'] * 1e6:.0f} us" for one in sizes])


@pytest.mark.parametrize("forced", ["decode", "prefill"])
def test_a_pair_on_another_lane_than_required_is_refused_before_traffic(
    start: Callable[..., Peer], room: int, forced: str
) -> None:
    """UCX-01: with UCX_TLS=tcp on one side, `require` refuses the pair and names both lanes."""
    settings = {"lanes": ["sysv", "tcp"], "required": ["sysv"]}
    decode, prefill = two(start, settings, settings, **{forced: "tcp"})
    found = decode("probe", source=prefill.address)
    assert (found["lane"], found["code"]) == ("tcp", "lane_refused")
    assert found["detail"] == "only lane tcp leads to prefill, required is sysv"
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    end = decode("wait", side="fetch", room=room)
    assert (end["state"], end["code"]) == ("FAILED", "lane_refused")
    assert decode("stats")["peers"] == prefill("stats")["peers"] == 0


def test_prefill_refuses_a_lane_that_only_it_forbids(start: Callable[..., Peer]) -> None:
    """The stricter of the two sides decides."""
    decode, prefill = two(
        start, {"lanes": ["tcp"]}, {"lanes": ["sysv", "tcp"], "required": ["sysv"]}
    )
    found = decode("probe", source=prefill.address)
    assert (found["lane"], found["code"]) == ("tcp", "lane_refused")
    assert found["detail"] == "lane tcp: prefill requires sysv"


def test_without_a_common_lane_the_reason_has_the_variable(start: Callable[..., Peer]) -> None:
    """UCX-02: the refusal says what each side has, and which variable excluded the rest."""
    both = {"lanes": ["sysv", "tcp"]}
    decode, prefill = two(start, both, both, decode="sm", prefill="^sm")
    found = decode("probe", source=prefill.address)
    assert (found["lane"], found["code"]) == ("unknown", "lane_refused")
    assert "decode has sysv, prefill has tcp" in found["detail"]
    assert "excluded by UCX_TLS=sm" in found["detail"]


def test_a_probe_of_a_silent_peer_ends(start: Callable[..., Peer]) -> None:
    """A stopped prefill: the probe is over in its time, and works again when it goes on."""
    settings = {"lanes": ["tcp"], "probe_timeout_s": 0.5, "connect_timeout_s": 2.0}
    decode, prefill = two(start, settings, settings)
    assert decode("probe", source=prefill.address)["code"] is None
    prefill.signal(signal.SIGSTOP)
    try:
        assert decode("probe", source=prefill.address)["code"] == "deadline"
    finally:
        prefill.signal(signal.SIGCONT)
    for _ in range(5):
        found = decode("probe", source=prefill.address)
        if found["code"] is None:
            return
    raise AssertionError(found)


def test_a_probe_of_a_dead_peer_says_so(start: Callable[..., Peer]) -> None:
    """A prefill that is gone is no lane."""
    decode, prefill = two(start, {"lanes": ["sysv"]}, {"lanes": ["sysv"]})
    prefill.kill()
    assert decode("probe", source=prefill.address)["code"] == "prefill_lost"
