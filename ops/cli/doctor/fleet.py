"""The checks of a running fleet, by what its workers say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ops.cli.doctor.findings import Finding, Level
from ops.cli.views.pairs import PairRow
from proto.errors import ErrorCode
from proto.kv import Lane
from proto.pairs import PairState
from proto.workers import Heartbeat, Role

__all__ = ["examine_fleet"]

_SLOW = 4.0
"""Times slower than the middle of all pairs on the same lane."""
_FEW = 3
_CARDS = "give all workers the same model folder, page size, versions and settings"
_LANES = "put workers in one IPC and PID namespace, or allow another lane with --kv-lanes"
_SEGMENTS = (
    "run pdbus doctor where it runs: raise kernel.shmmax, shmall or shmmni, remove segments of "
    "dead processes (ipcs -mp, ipcrm), or give the containers one IPC namespace; then restart it"
)
_NETWORK = (
    "see that prefill and decode share a network, that its device is named in "
    "PDBUS_PREFILL_KV_INTERFACE and PDBUS_DECODE_KV_INTERFACE, and that no firewall parts them"
)


def examine_fleet(beats: Sequence[Heartbeat], rows: Sequence[PairRow]) -> list[Finding]:
    """Return what is wrong between workers."""
    workers = [beat for beat in beats if beat.role in {Role.PREFILL, Role.DECODE}]
    unshared = [finding for beat in workers for finding in _unshared(beat)]
    if not rows:
        text = f"{len(workers)} prefill and decode workers, and no pair among them"
        fix = "start a prefill and a decode worker of one model"
        level = Level.WARNING if workers else Level.NOTE
        none = Finding(check="pairs", level=level, text=text, fix=fix if workers else "")
        return [none, *unshared]
    found = [finding for row in rows for finding in _pair(row)]
    found += _namespaces(workers, rows)
    found += _slow(rows)
    found += unshared
    if not any(finding.level is Level.PROBLEM for finding in found):
        text = f"all {len(rows)} pairs can be used"
        found.insert(0, Finding(check="pairs", level=Level.OK, text=text))
    return found


def _pair(row: PairRow) -> Iterator[Finding]:
    name = f"{row.prefill} → {row.decode}"
    if row.code == ErrorCode.VERSION_MISMATCH:
        text = f"{name}: {row.detail}"
        yield Finding(check="cards", level=Level.PROBLEM, text=text, fix=_CARDS)
    elif row.code == ErrorCode.LANE_REFUSED and "common lane" not in row.detail:
        yield Finding(check="lanes", level=Level.PROBLEM, text=row.detail, fix=_LANES)
    elif row.code:
        text = f"{name}: no shared network: {row.detail}"
        yield Finding(check="network", level=Level.PROBLEM, text=text, fix=_NETWORK)
    elif row.warning:
        yield Finding(check="lanes", level=Level.WARNING, text=row.warning, fix=_LANES)
    elif row.state is PairState.UNKNOWN:
        text = f"{name} was not probed yet"
        fix = "pdbus pairs --probe"
        yield Finding(check="pairs", level=Level.NOTE, text=text, fix=fix)


def _namespaces(workers: Sequence[Heartbeat], rows: Sequence[PairRow]) -> Iterator[Finding]:
    """Workers of one machine that cannot use its shared memory say different hosts."""
    hosts = {beat.address.host for beat in workers if beat.address is not None}
    on_tcp = [row for row in rows if row.lane == Lane.TCP]
    if on_tcp and len(hosts) > 1:
        text = f"{len(on_tcp)} pairs take tcp, between {len(hosts)} hosts or namespaces"
        fix = "if they run on one machine: share its IPC and PID namespace, and its user"
        yield Finding(check="lanes", level=Level.NOTE, text=text, fix=fix)
    elif on_tcp:
        text = f"{len(on_tcp)} pairs take tcp though their workers share memory"
        fix = "look for UCX_TLS in their environment, and for sysv in PDBUS_*_KV_TRANSPORTS"
        yield Finding(check="lanes", level=Level.WARNING, text=text, fix=fix)


def _unshared(beat: Heartbeat) -> Iterator[Finding]:
    """Links of one machine whose chunks UCX carries, as the system gave no segment for them."""
    links = beat.load.kv_unshared_links if beat.load is not None else 0
    if links:
        text = (
            f"{beat.instance}: {links} links on one host got no System V memory since its start: "
            "their KV is copied four times instead of twice"
        )
        yield Finding(check="shared memory", level=Level.WARNING, text=text, fix=_SEGMENTS)


def _slow(rows: Sequence[PairRow]) -> Iterator[Finding]:
    for lane in sorted({row.lane for row in rows}):
        mine = [row for row in rows if row.lane == lane and row.bytes_per_s > 0]
        if len(mine) < _FEW:
            continue
        middle = median(row.bytes_per_s for row in mine)
        for row in mine:
            if row.bytes_per_s * _SLOW < middle:
                text = (
                    f"{row.prefill} → {row.decode} does {row.bytes_per_s / 1e9:.2f} GB/s, "
                    f"others on {lane} {middle / 1e9:.2f}"
                )
                fix = "pdbus pairs --probe; then look at the load, cable and MTU of that host"
                yield Finding(check="speed", level=Level.WARNING, text=text, fix=fix)
