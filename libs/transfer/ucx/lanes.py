"""Which lane a pair uses, and how UCX is told to use that lane only.

Nothing is left to UCX's own choice: a context knows one transport, so what works through it went
over that transport.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane, PeerAddress

__all__ = ["SHARED_MEMORY", "check_environment", "choose_lane", "host_identity", "lane_options"]

SHARED_MEMORY = frozenset({Lane.SYSV, Lane.POSIX})
"""Lanes that reach only processes with the same `PeerAddress.host`."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIASES: dict[str, frozenset[str]] = {
    "mm": frozenset({"sysv", "posix"}),
    "sm": frozenset({"sysv", "posix", "cma"}),
    "shm": frozenset({"sysv", "posix", "cma"}),
}
_COMMON = {
    # Eager always: rendezvous needs lanes without failure detection to be fast.
    "RNDV_THRESH": "inf",
    "KEEPALIVE_INTERVAL": "1s",
}
_SHARED_OPTIONS = {"MM_ERROR_HANDLING": "y"}
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
        return {"TLS": f"{lane},self", **_COMMON, **_SHARED_OPTIONS}
    if lane is Lane.TCP:
        device = {"NET_DEVICES": interface} if interface else {}
        return {"TLS": str(lane), **_COMMON, **_TCP_OPTIONS, **device}
    raise PdbusError(ErrorCode.LANE_REFUSED, f"lane {lane} is not supported by this build")


def check_environment(lane: Lane, environment: Mapping[str, str]) -> None:
    """Refuse a lane that the operator has excluded with `UCX_TLS`.

    Contexts carry their own TLS list, which would silently override the operator's.

    Raises:
        PdbusError: the lane is excluded (`lane_refused`).
    """
    allowed = environment.get("UCX_TLS", "").strip()
    if not allowed or allowed == "all":
        return
    negated = allowed.startswith("^")
    names = {name.strip().lstrip("\\") for name in allowed.lstrip("^").split(",")}
    listed = "all" in names or any(lane == name or lane in _ALIASES.get(name, ()) for name in names)
    if listed == negated:
        raise PdbusError(
            ErrorCode.LANE_REFUSED,
            f"lane {lane} is excluded by UCX_TLS={allowed} in the environment",
        )


def choose_lane(mine: Sequence[Lane], host: str, peer: PeerAddress) -> Lane | None:
    """Return the first lane of mine that reaches the peer, or None."""
    for lane in mine:
        if lane in peer.workers and (lane not in SHARED_MEMORY or host == peer.host):
            return lane
    return None
