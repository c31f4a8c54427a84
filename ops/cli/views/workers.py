"""Listing the fleet: what every process says of itself in one second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rich.table import Table

from libs.bus import Bus
from libs.clock import SystemClock
from libs.fleet import Fleet, FleetListener, refusals
from proto.workers import Heartbeat, Role

__all__ = ["listen", "notes", "table"]

LISTEN_S = 1.2
"""A little more than the period of heartbeats: every living process speaks in it."""

_ORDER = (
    Role.GATEWAY,
    Role.ROUTER,
    Role.PREFILL,
    Role.DECODE,
    Role.AGGREGATED,
    Role.CLEANUP,
)


async def listen(bus: Bus, seconds: float = LISTEN_S) -> list[Heartbeat]:
    """Return the last heartbeat of each process that speaks within `seconds`."""
    fleet = Fleet()
    listener = FleetListener(bus=bus, clock=SystemClock(), fleet=fleet)
    await listener.start()
    try:
        await asyncio.sleep(seconds)
    finally:
        await listener.close()
    beats = [member.heartbeat for member in fleet.members()]
    return sorted(beats, key=lambda beat: (_ORDER.index(beat.role), beat.instance))


def table(beats: Sequence[Heartbeat]) -> Table:
    """Return the fleet as a table."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("role", "instance", "incarnation", "state", "model", "card"):
        shown.add_column(heading, no_wrap=heading != "state")
    for heading in ("run", "wait", "slots free", "KV tokens", "leases", "lanes"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for beat in beats:
        shown.add_row(*_row(beat))
    return shown


def notes(beats: Sequence[Heartbeat]) -> list[str]:
    """Return a line for each pair that gets no work, and why."""
    return [
        f"refused: {pair.prefill.instance} → {pair.decode.instance}: {pair.code}: {pair.detail}"
        for pair in refusals(beats)
    ]


def _row(beat: Heartbeat) -> Iterable[str]:
    card, load = beat.card, beat.load
    state = f"{beat.state}: {beat.reason}" if beat.reason else str(beat.state)
    yield from (beat.role, beat.instance, beat.incarnation, state)
    yield from (card.model, card.digest) if card else ("", "")
    if load is None:
        yield from ("", "", "", "")
    else:
        yield str(load.running)
        yield str(load.waiting)
        yield f"{load.slots_free}/{load.slots}"
        yield f"{load.kv_used_tokens}/{load.kv_total_tokens}"
    yield str(len(beat.leases)) if load else ""
    yield ", ".join(beat.address.workers) if beat.address else ""
