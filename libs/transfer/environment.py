"""What the operator says to UCX by way of the environment, and what pdbus makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane

__all__ = ["excluded_lanes"]

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
