"""Engines in containers that share nothing, without privileges; and children of an engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.integration.transfer.peer import PAGES, Peer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROW = 64 + 8
PAGE = 384 + 384 + 1024
SIZES = {"1 KiB": [5], "1 MiB": list(range(600)), "256 MiB": list(range(PAGES)) * 37}
LANES = ["cma", "sysv", "tcp"]
UNPRIVILEGED = [
    *("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"),
    "--no-new-privs",
]
APART = ["unshare", "--ipc", "--pid", "--fork", "--kill-child"]


def cannot(command: list[str]) -> str:
    """Return why a command cannot be used here, or nothing."""
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("apart", [False, True], ids=["shared", "apart"])
def test_all_sizes_move_without_privileges(
    start: Callable[..., Peer], room: int, apart: bool
) -> None:
    """UCX-03: without SYS_PTRACE, in shared and in separate IPC and PID namespaces, all is moved.

    Where memory cannot be read or shared, another lane is taken by itself, and the report says so.
    """
    prefix = [*(APART if apart else []), *UNPRIVILEGED]
    if why := cannot(prefix):
        pytest.skip(f"no namespaces here: {why}")
    config = {"settings": {"lanes": LANES, "chunk_bytes": 2 << 20}, "prefix": prefix}
    decode, prefill = start(**config), start(**config)
    decode.begun(), prefill.begun()
    used: set[str] = set()
    for number, (size, pages) in enumerate(SIZES.items()):
        decode("fetch", source=prefill.address, room=room + number, pages=pages, row=0, tokens=1)
        prefill("offer", room=room + number)
        prefill("push", room=room + number, pages=pages, first_page=0, last=True, row=0)
        end = decode("wait", side="fetch", room=room + number)
        assert end["state"] == "DONE", (size, end)
        assert end["report"]["moved_bytes"] == len(pages) * PAGE + ROW
        used.add(end["report"]["lane"])
    assert decode("digest", pages=SIZES["1 MiB"]) == prefill("digest", pages=SIZES["1 MiB"])
    if apart:
        assert used == {"tcp"}
    else:
        assert used <= {"cma", "sysv"}
    print(f"apart {apart}: {used}")


def test_children_of_an_engine_do_not_disturb_it(start: Callable[..., Peer], room: int) -> None:
    """UCX-09: programs started and children forked in mid-transfer end well, as does the room."""
    config = {"settings": {"lanes": ["sysv"], "chunk_bytes": 64 << 10}}
    decode, prefill = start(**config), start(**config)
    decode.begun(), prefill.begun()
    pages = list(range(PAGES)) * 40
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=pages, first_page=0, last=True, row=0)
    assert decode("wait", side="fetch", room=room, state="MOVING")["state"] == "MOVING"
    for peer in (decode, prefill):
        assert set(peer("spawn", count=10)) == {0}
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    assert decode("digest", pages=list(range(PAGES))) == prefill("digest", pages=list(range(PAGES)))
    assert os.getpid() not in (decode.pid, prefill.pid)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_planes_start_beside_each_other(start: Callable[..., Peer], room: int, rounds: int) -> None:
    """UCX-09, OPS-05: engines that start at the same time all come up, each at its own address."""
    doors: set[str] = set()
    for _ in range(rounds):
        peers = [start(settings={"lanes": ["sysv", "tcp"]}) for _ in range(4)]
        for peer in peers:
            doors.add(peer.begun().address)
            assert peer.refused is None
        for peer in peers:
            peer.end()
    assert len(doors) == 4 * rounds
