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

__all__ = ["SHARED_MEMORY", "choose_lane", "excluded_lanes", "host_identity", "lane_options"]

SHARED_MEMORY = frozenset({Lane.SYSV, Lane.POSIX})
"""Lanes that reach only processes with the same `PeerAddress.host`."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIASES: dict[str, frozenset[str]] = {
    "mm": frozenset({"sysv", "posix"}),
    "sm": frozenset({"sysv", "posix", "cma"}),
    "shm": frozenset({"sysv", "posix", "cma"}),
    "ib": frozenset({"rc"}),
    **{name: frozenset({"rc"}) for name in ("rc_v", "rc_x", "rc_verbs", "rc_mlx5")},
    "cuda": frozenset({"cuda_ipc"}),
}
_TRANSPORTS = frozenset(
    {
        *("all", "self", "tl", "tcp", "sm", "shm", "mm", "sysv", "posix", "cma", "xpmem", "knem"),
        *("ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "rc_gda", "gdaki", "gga", "gga_mlx5"),
        *("ud", "ud_v", "ud_x", "ud_verbs", "ud_mlx5", "dc", "dc_x", "dc_mlx5", "srd", "efa"),
        *("ugni", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "gdrcopy"),
        *("rocm", "rocm_copy", "rocm_ipc", "rocm_gdr", "ze", "ze_copy", "ze_ipc", "ze_gdr"),
    }
)
"""What `UCX_TLS` may name; UCX itself overlooks a name that it does not know."""
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


def excluded_lanes(lanes: Sequence[Lane], environment: Mapping[str, str]) -> dict[Lane, str]:
    """Return the lanes that the operator has excluded with `UCX_TLS`, and the words for it.

    Contexts carry their own TLS list, which would silently override the operator's.

    Raises:
        PdbusError: no lane is left, or the variable names a transport that there is not
            (`lane_refused`).
    """
    allowed = environment.get("UCX_TLS", "").strip()
    if not allowed or allowed == "all":
        return {}
    said = f"UCX_TLS={allowed} in the environment"
    negated = allowed.startswith("^")
    names = {name.strip().lstrip("\\") for name in allowed.lstrip("^").split(",")}
    strange = sorted(names - _TRANSPORTS - {"all"})
    if strange:
        text = ", ".join(repr(name) for name in strange)
        raise PdbusError(ErrorCode.LANE_REFUSED, f"{said} names no transport of UCX: {text}")
    found: dict[Lane, str] = {}
    for lane in lanes:
        named = any(lane == name or lane in _ALIASES.get(name, ()) for name in names)
        if ("all" in names or named) == negated:
            found[lane] = f"lane {lane} is excluded by {said}"
    if len(found) == len(set(lanes)):
        raise PdbusError(ErrorCode.LANE_REFUSED, "; ".join(found.values()))
    return found


def choose_lane(mine: Sequence[Lane], host: str, peer: PeerAddress) -> Lane | None:
    """Return the first lane of mine that reaches the peer, or None."""
    for lane in mine:
        if lane in peer.workers and (lane not in SHARED_MEMORY or host == peer.host):
            return lane
    return None
