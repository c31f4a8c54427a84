"""A plane's door is open to whoever reaches it: only who has its address from the bus is heard."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.transfer.wire import (
    CONTROL_TAG,
    PROBE_TAG,
    Bye,
    Credit,
    Hello,
    ProbeAsk,
    Stop,
    Want,
    Welcome,
    WireLayout,
    data_tag,
    pack,
    ticket_of,
)
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane, PeerAddress
from tests.integration.transfer.peer import Peer

pytestmark = pytest.mark.integration

LAYOUT = WireLayout(page_bytes=(1,), row_bytes=(), page_tokens=1, compat="c")
TAGS = st.sampled_from([0, CONTROL_TAG, PROBE_TAG, data_tag(0), data_tag(3), (1 << 64) - 1])
ROOMS = st.integers(1, (1 << 63) - 1).map(Room)
HELLOS = st.builds(
    Hello,
    version=st.integers(0, 5),
    nonce=st.text("0123456789abcdef", max_size=40),
    incarnation=st.text(max_size=20),
    target=st.text(max_size=20),
    lane=st.sampled_from(Lane),
    # What UCX would end the process for.
    worker=st.binary(min_size=1, max_size=400),
    host=st.text(max_size=20),
    pid=st.integers(1, 1 << 22),
    layout=st.just(LAYOUT),
    slab_bytes=st.integers(1, 1 << 31),
    slots=st.integers(1, 1024),
    ticket=st.binary(max_size=40),
)
MESSAGES = st.one_of(
    HELLOS,
    st.builds(Welcome, nonce=st.text(max_size=9), worker=st.binary(min_size=1), pid=st.just(1)),
    st.builds(
        Want,
        room=ROOMS,
        pages=st.integers(0, 99),
        skip=st.integers(0, 99),
        bytes=st.integers(-9, 1 << 60),
        row=st.booleans(),
        tokens=st.integers(-9, 99),
    ),
    st.builds(Credit, slots=st.tuples(st.integers(0, 9))),
    st.builds(Stop, room=ROOMS, code=st.sampled_from(ErrorCode), detail=st.text(max_size=50)),
    st.builds(ProbeAsk, size=st.integers(1, 1 << 20)),
    st.builds(Bye),
)


def mangled(data: bytes, at: int, bit: int, cut: int) -> bytes:
    """Return a frame with one bit changed, and its end cut off."""
    changed = bytearray(data)
    changed[at % len(changed)] ^= 1 << bit
    return bytes(changed[: len(changed) - cut])


FRAMES = st.one_of(
    st.binary(max_size=600),
    MESSAGES.map(pack),
    st.builds(
        mangled,
        MESSAGES.map(pack),
        st.integers(0, 1 << 16),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
)


@pytest.fixture(scope="module", params=["sysv", "tcp"])
def door(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer, Peer, str]]:
    """Return prefill, decode and a stranger on one lane."""
    peers = [Peer(settings={"lanes": [request.param]}) for _ in range(3)]
    for peer in peers:
        peer.begun()
    yield (*peers, request.param)
    for peer in peers:
        peer.end()


def move(prefill: Peer, decode: Peer, room: int) -> str:
    """Move a room and return its end: the proof that both are well."""
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[1], first_page=0, last=True, row=0)
    return decode("wait", side="fetch", room=room)["state"]


rooms = iter(range(900_000, 10_000_000))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(frames=st.lists(st.tuples(TAGS, FRAMES), min_size=10, max_size=60))
def test_nothing_that_a_stranger_sends_does_harm(
    door: tuple[Peer, Peer, Peer, str], frames: list[tuple[int, bytes]]
) -> None:
    """Noise, mangled messages, whole ones, made-up addresses: dropped and counted."""
    prefill, decode, stranger, lane = door
    before = prefill("stats")
    sent = [[tag, base64.b64encode(frame).decode()] for tag, frame in frames]
    stranger("throw", source=prefill.address, lane=lane, frames=sent)
    assert move(prefill, decode, next(rooms)) == "DONE"
    after = prefill.until(
        lambda stats: (
            sum(stats[n] - before[n] for n in ("malformed_messages", "strangers")) >= len(frames)
            and not stats["open_rooms"]
        )
    )
    assert after["refused_peers"] == before["refused_peers"]


def tampered(address: str, **changes) -> str:
    """Return an address with some of it changed."""
    found = msgspec.msgpack.decode(base64.b64decode(address), type=PeerAddress)
    found = msgspec.structs.replace(found, **changes)
    return base64.b64encode(msgspec.msgpack.encode(found)).decode()


def test_a_peer_without_the_secret_gets_no_answer(start: Callable[..., Peer]) -> None:
    """Whoever did not hear the address on the bus is a stranger, however well it fits."""
    config = {"settings": {"lanes": ["sysv"], "connect_timeout_s": 0.5}}
    prefill, decode = start(**config).begun(), start(**config).begun()
    found = decode("probe", source=tampered(prefill.address, secret=b"guessed"))
    assert found["code"] == "prefill_lost"
    assert "no answer" in found["detail"]
    stats = prefill("stats")
    assert (stats["strangers"], stats["peers"], stats["refused_peers"]) == (1, 0, 0)
    assert decode("probe", source=prefill.address)["code"] is None


@pytest.mark.parametrize("field", ["nonce", "incarnation", "target", "lane", "worker"])
def test_a_ticket_is_for_one_greeting(field: str) -> None:
    """A ticket that was overheard does not fit another greeting."""
    hello = Hello(
        version=1,
        nonce="n",
        incarnation="i",
        target="t",
        lane=Lane.TCP,
        worker=b"w",
        host="h",
        pid=1,
        layout=LAYOUT,
        slab_bytes=1,
        slots=1,
    )
    other = {"lane": Lane.SYSV, "worker": b"x"}.get(field, "x")
    changed = msgspec.structs.replace(hello, **{field: other})
    assert ticket_of(b"s", hello) != ticket_of(b"s", changed)
    assert ticket_of(b"s", hello) != ticket_of(b"r", hello)


def listening(pid: int) -> set[str]:
    """Return the addresses on which a process accepts TCP connections, in the kernel's words."""
    held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                found.add(fields[1].partition(":")[0])
    return found


def test_the_door_is_on_the_configured_interface_only(start: Callable[..., Peer]) -> None:
    """UCX-10: with an interface given, nothing listens on any other one."""
    peer = start(settings={"lanes": ["sysv", "tcp"], "interface": "lo"}).begun()
    assert listening(peer.pid) == {"0100007F"}
