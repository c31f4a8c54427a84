"""Which lane is used, what an operator may exclude, and what an idle plane costs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.transfer.peer import Peer

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("mine", "theirs", "used"),
    [
        (["sysv", "tcp"], ["sysv", "tcp"], "sysv"),
        (["posix", "tcp"], ["tcp", "posix"], "posix"),
        (["sysv", "tcp"], ["tcp"], "tcp"),
        (["tcp", "sysv"], ["sysv", "tcp"], "tcp"),
    ],
)
def test_the_first_common_lane_carries_the_bytes(
    start: Callable[..., Peer], room: int, mine: list[str], theirs: list[str], used: str
) -> None:
    """The receiver's first lane that the sender has is used, and named in the report."""
    decode, prefill = start(settings={"lanes": mine}), start(settings={"lanes": theirs})
    decode.begun(), prefill.begun()
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[1], first_page=0, last=True, row=0)
    for peer, side in ((decode, "fetch"), (prefill, "offer")):
        assert peer("wait", side=side, room=room)["report"]["lane"] == used
        assert list(peer("stats")["by_lane"]) == [used]


@pytest.mark.parametrize("lane", ["sysv", "cma"])
@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_without_shared_memory_chunks_go_through_ucx(
    start: Callable[..., Peer], room: int, lane: str, side: str
) -> None:
    """A pair that gets no segment moves the same bytes on the same lane, and counts the link."""
    config = {"settings": {"lanes": [lane], "chunk_bytes": 64 << 10}}
    peers = {"decode": start(**config), "prefill": start(**config)}
    decode, prefill = peers["decode"].begun(), peers["prefill"].begun()
    peers[side]("scarce")
    pages = list(range(3, 900, 3))
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=pages, first_page=0, last=True, row=0)
    assert decode("wait", side="fetch", room=room)["report"]["lane"] == lane
    assert decode("digest", pages=pages) == prefill("digest", pages=pages)
    assert {name: peer("stats")["unshared_links"] for name, peer in peers.items()} == {
        "decode": int(side == "decode"),
        "prefill": int(side == "prefill"),
    }


def test_no_common_lane_is_refused(start: Callable[..., Peer], room: int) -> None:
    """Without a lane that both have a fetch fails at once and names what prefill has."""
    decode, prefill = start(settings={"lanes": ["sysv"]}), start(settings={"lanes": ["tcp"]})
    decode.begun(), prefill.begun()
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    end = decode("wait", side="fetch", room=room, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "lane_refused")
    assert "prefill has tcp" in end["detail"]


@pytest.mark.parametrize(
    ("lanes", "allowed", "missing"),
    [(["sysv"], "tcp", "sysv"), (["tcp"], "^tcp", "tcp"), (["rc"], "", "rc")],
)
def test_a_lane_that_cannot_be_had_fails_the_start(
    start: Callable[..., Peer], lanes: list[str], allowed: str, missing: str
) -> None:
    """A lane that UCX_TLS excludes, or that this build lacks, is a typed error at the start."""
    environment = {"UCX_TLS": allowed} if allowed else {}
    peer = start(settings={"lanes": lanes}, environment=environment).begun()
    assert peer.refused is not None
    assert peer.refused["refused"] == "lane_refused"
    assert f"lane {missing} " in peer.refused["detail"]


def test_a_missing_interface_fails_the_start(start: Callable[..., Peer]) -> None:
    """A network device that does not exist is a typed error at the start."""
    peer = start(settings={"lanes": ["tcp"], "interface": "nodevice0"}).begun()
    assert peer.refused is not None
    assert peer.refused["refused"] == "lane_refused"


def test_an_idle_plane_sleeps(start: Callable[..., Peer], room: int) -> None:
    """Two linked planes with nothing to do use next to no processor (printed)."""
    decode, prefill = start(), start()
    decode.begun(), prefill.begun()
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[1], first_page=0, last=True, row=0)
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    time.sleep(0.3)
    before = [peer("resources")["cpu"] for peer in (decode, prefill)]
    time.sleep(2)
    after = [peer("resources")["cpu"] for peer in (decode, prefill)]
    used = [(b - a) / 2 for a, b in zip(before, after, strict=True)]
    print(f"idle cores, decode and prefill: {used}")
    assert max(used) < 0.2
