"""Hosts with several devices, with IPv6 only, or with nothing in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.transfer.hosts.network import Network, network, why_no_network
from tests.integration.transfer.peer import Peer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(why_no_network()), reason="no network namespaces here"),
]

PAGES = list(range(600))
BYTES = 600 * (384 + 384 + 1024)


def pair(start: Callable[..., Peer], hosts: Network, interface: str | None) -> tuple[Peer, Peer]:
    """Start decode on host 0 and prefill on host 1."""
    settings = {"lanes": ["tcp"], "interface": interface, "connect_timeout_s": 2.0}
    peers = [start(settings=settings, prefix=hosts.prefix(host)) for host in range(2)]
    return peers[0].begun(), peers[1].begun()


def move(prefill: Peer, decode: Peer, room: int) -> dict:
    """Move a room and return its end."""
    decode("fetch", source=prefill.address, room=room, pages=PAGES, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=PAGES, first_page=0, last=True, row=0)
    return decode("wait", side="fetch", room=room, timeout=10)


def test_bytes_take_the_interface_that_is_named(start: Callable[..., Peer], room: int) -> None:
    """UCX-10: both hosts have a bridge-like device with one address; all bytes take the other."""
    with network(2) as hosts:
        for host in range(2):
            hosts.add_device(host, "docker0", "172.17.0.1/16")
        decode, prefill = pair(start, hosts, "eth")
        before = hosts.sent_bytes(1, "docker0")
        assert move(prefill, decode, room)["state"] == "DONE"
        assert decode("digest", pages=PAGES) == prefill("digest", pages=PAGES)
        assert hosts.sent_bytes(1, "eth") > BYTES
        assert hosts.sent_bytes(1, "docker0") - before < 10_000


def test_a_peer_that_would_reach_itself_is_told(start: Callable[..., Peer]) -> None:
    """UCX-10, OPS-11: with no interface named and one address twice, the probe fails, typed."""
    with network(2) as hosts:
        for host in range(2):
            hosts.add_device(host, "docker0", "172.17.0.1/16")
        decode, prefill = pair(start, hosts, None)
        found = decode("probe", source=prefill.address)
        assert found["code"] in {"prefill_lost", None}
        if found["code"] is None:
            # UCX took the right one by itself, which it promises nobody.
            assert hosts.sent_bytes(1, "eth") > 4 << 20


def test_hosts_without_a_shared_network_are_told(start: Callable[..., Peer], room: int) -> None:
    """UCX-10, OPS-11: bound to a device that leads nowhere: a typed error in time, not a hang."""
    with network(2) as hosts:
        for host in range(2):
            hosts.add_device(host, "mgmt", f"192.168.{host}.1/24")
        decode, prefill = pair(start, hosts, "mgmt")
        found = decode("probe", source=prefill.address)
        assert found["code"] == "prefill_lost", found
        end = move(prefill, decode, room)
        assert (end["state"], end["code"]) == ("FAILED", "prefill_lost"), end


def test_ipv6_alone_is_enough(start: Callable[..., Peer], room: int) -> None:
    """OPS-06: hosts that have nothing but IPv6 addresses exchange KV."""
    with network(2, "fd77::{}/64") as hosts:
        decode, prefill = pair(start, hosts, "eth")
        assert decode("probe", source=prefill.address)["code"] is None
        assert move(prefill, decode, room)["state"] == "DONE"
        assert decode("digest", pages=PAGES) == prefill("digest", pages=PAGES)
