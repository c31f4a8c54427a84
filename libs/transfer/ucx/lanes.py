"""Which lane a pair uses, and how UCX is told to use that lane only.

Nothing is left to UCX's own choice: a context knows one transport, so what works through it went
over that transport.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane, PeerAddress

__all__ = ["SHARED_MEMORY", "carrier_of", "choose_lane", "host_identity", "lane_options"]

SHARED_MEMORY = frozenset({Lane.CMA, Lane.SYSV, Lane.POSIX})
"""Lanes that reach only processes with the same `PeerAddress.host`."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_COMMON = {
    # Eager always: rendezvous needs lanes without failure detection to be fast.
    "RNDV_THRESH": "inf",
    "KEEPALIVE_INTERVAL": "1s",
}
_SHARED_OPTIONS = {"MM_ERROR_HANDLING": "y"}
_SHARED_SIZES = {"SEG_SIZE": "32K", "FIFO_SIZE": "256"}
"""8 MiB that a sender may put down before its peer has had a turn: two chunks. With UCX's own 2 MiB
the two take turns on the processor instead. A port takes 17 MB of shared memory with either."""
_TCP_OPTIONS = {"TCP_TX_SEG_SIZE": "256K", "TCP_RX_SEG_SIZE": "256K"}


def host_identity() -> str:
    """Return the name of what shared memory is shared within: boot, namespaces and user.

    The process namespace counts because UCX watches a peer on shared memory by its process id;
    the user counts because segments are private to it.
    """
    facts = (
        _BOOT_ID.read_text().strip(),
        str(Path("/proc/self/ns/ipc").readlink()),
        str(Path("/proc/self/ns/pid").readlink()),
        str(os.geteuid()),
    )
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def lane_options(lane: Lane, interface: str | None) -> dict[str, str]:
    """Return the UCX options (without `UCX_`) that leave exactly one lane.

    Raises:
        PdbusError: pdbus does not know how to run that lane alone (`lane_refused`).
    """
    if lane in SHARED_MEMORY:
        carrier = carrier_of(lane)
        sizes = {f"{carrier.upper()}_{name}": size for name, size in _SHARED_SIZES.items()}
        return {"TLS": f"{carrier},self", **_COMMON, **_SHARED_OPTIONS, **sizes}
    if lane is Lane.TCP:
        device = {"NET_DEVICES": interface} if interface else {}
        return {"TLS": str(lane), **_COMMON, **_TCP_OPTIONS, **device}
    raise PdbusError(ErrorCode.LANE_REFUSED, f"lane {lane} is not supported by this build")


def carrier_of(lane: Lane) -> Lane:
    """Return the transport that UCX uses for a lane.

    UCX's own cma has no failure detection and leaks with a peer that dies: on the lane of that name
    decode reads pages itself, and UCX carries the messages about them.
    """
    return Lane.SYSV if lane is Lane.CMA else lane


def choose_lane(mine: Sequence[Lane], host: str, peer: PeerAddress) -> Lane | None:
    """Return the first lane of mine that reaches the peer, or None."""
    for lane in mine:
        if lane in peer.workers and (lane not in SHARED_MEMORY or host == peer.host):
            return lane
    return None
