"""Draining one worker over the bus, and following it until its process has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from libs.bus import BusError, NatsBus, NoResponders
from libs.clock import SystemClock
from libs.fleet import SUSPECT_S, Fleet, FleetListener, Member
from ops.cli.errors import CommandError
from ops.cli.stack.record import SlotRecord, SlotState
from proto import subjects
from proto.control import Drain, Draining
from proto.errors import PdbusError
from proto.ids import InstanceId
from proto.workers import Role, WorkerState

__all__ = ["drain_worker"]

WORKERS = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)

_HEAR_S = 2.2
"""Two periods of heartbeats: whoever lives has spoken by then."""
_ASK_S = 2.0
_POLL_S = 0.1

Say = Callable[[str], None]
SlotNow = Callable[[], SlotRecord | None]


async def drain_worker(
    bus: NatsBus, instance: InstanceId, slot: SlotNow, wait_s: float, say: Say
) -> bool:
    """Let a worker finish and end; return whether its process has ended within `wait_s`.

    Args:
        bus: where it listens.
        instance: who.
        slot: what its supervisor knows of it now; None where there is no supervisor here.
        wait_s: how long to follow it.
        say: takes a line at each change.

    Raises:
        CommandError: there is no such worker, or it does not obey.
    """
    clock, fleet = SystemClock(), Fleet()
    listener = FleetListener(bus=bus, clock=clock, fleet=fleet)
    await listener.start()
    try:
        before = slot()
        member = await _find(fleet, instance)
        running = await _order(bus, member)
        say(f"{instance} drains, {running} running")
        return await _follow(fleet, member, before, slot, wait_s, say)
    finally:
        await listener.close()


async def _find(fleet: Fleet, instance: InstanceId) -> Member:
    until = time.monotonic() + _HEAR_S
    while time.monotonic() < until:
        await asyncio.sleep(_POLL_S)
        found = next((m for m in _workers(fleet) if m.heartbeat.instance == instance), None)
        if found is not None:
            return found
    known = ", ".join(sorted(m.heartbeat.instance for m in _workers(fleet))) or "none"
    message = f"there is no worker {instance!r} on the bus; there are: {known}"
    raise CommandError(message)


async def _order(bus: NatsBus, member: Member) -> int:
    beat = member.heartbeat
    try:
        subject = subjects.worker(beat.ref, "drain")
        return (await bus.request(subject, Drain(), Draining, timeout_s=_ASK_S)).running
    except NoResponders as error:
        why = beat.reason or str(beat.state)
        message = f"{beat.instance} takes no orders now: {why}"
        raise CommandError(message) from error
    except (BusError, PdbusError) as error:
        message = f"{beat.instance} does not drain: {error}"
        raise CommandError(message) from error


async def _follow(
    fleet: Fleet,
    member: Member,
    before: SlotRecord | None,
    slot: SlotNow,
    wait_s: float,
    say: Say,
) -> bool:
    beat = member.heartbeat
    began = time.monotonic()
    shown = None
    while time.monotonic() - began < wait_s:
        await asyncio.sleep(_POLL_S)
        spent = f"{time.monotonic() - began:.1f} s"
        known = fleet.get(beat.incarnation)
        if known is not None and known.heartbeat.state is WorkerState.DRAINING:
            left = len(known.heartbeat.leases)
            if left != shown:
                say(f"{beat.instance}: {left} running")
                shown = left
        ended = _ended(before, slot())
        if ended is not None:
            say(f"{beat.instance}: {ended} after {spent}")
            return True
        if before is None and (known is None or known.health(time.monotonic()) != "alive"):
            say(f"{beat.instance}: not heard for {SUSPECT_S:g} s, it has ended after {spent}")
            return True
    say(f"{beat.instance} still drains after {wait_s:g} s, {shown or 0} running")
    return False


def _ended(before: SlotRecord | None, now: SlotRecord | None) -> str | None:
    """Return what became of a process of the stack, or None while it lives."""
    if before is None or now is None or now.pid == before.pid:
        return None
    if now.state is SlotState.DRAINED:
        return f"drained{f' ({now.reason})' if now.reason else ''}"
    return f"ended; its slot is {now.state}"


def _workers(fleet: Fleet) -> Iterable[Member]:
    return fleet.members(*WORKERS)
