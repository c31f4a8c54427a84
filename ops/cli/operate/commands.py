"""The operators' commands of `pdbus`, as the user writes them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from ops.cli.arguments import STATE_DIR
from ops.cli.operate.cancel import cancel_request
from ops.cli.operate.drain import drain_worker
from ops.cli.operate.ledger import newest_requests
from ops.cli.operate.restart import restart_slot, slot_of
from ops.cli.stack.record import SlotRecord, running_stack
from ops.cli.views.link import visit
from ops.cli.views.requests import request_table
from ops.cli.views.screen import screen
from ops.cli.views.trace import request_id
from proto.ids import InstanceId, RequestId
from proto.ledger import RequestRecord, RequestState

__all__ = ["COMMANDS", "cancel", "drain", "requests", "restart"]

Switch = Annotated[bool, Parameter(negative=())]
Seconds = Annotated[float, Parameter(validator=Number(gt=0))]
States = Annotated[tuple[RequestState, ...], Parameter(negative=())]

_UNPROVED = 1


def requests(
    *,
    state: States = (),
    limit: Annotated[int, Parameter(validator=Number(gte=1))] = 20,
    json: Switch = False,
    nats: str | None = None,
    state_dir: Path = STATE_DIR,
) -> None:
    """List the requests that came last: where each stands, where it runs, what was freed.

    Args:
        state: only requests that stand so; may be given several times.
        limit: how many.
        json: one JSON object a line.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    url = nats or running_stack(state_dir.resolve()).nats_url
    records = asyncio.run(_records(url, state, limit))
    if json:
        for record in records:
            sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    else:
        screen().print(request_table(records, time.time_ns() // 1_000_000))


def cancel(
    request: str,
    *,
    reason: str = "cancelled by an operator",
    nats: str | None = None,
    state_dir: Path = STATE_DIR,
) -> None:
    """Cancel one request and wait until both engines are free of it.

    Exit code 0: it is cancelled and free; 1: it cannot be cancelled, or is not proved free yet.

    Args:
        request: its id, or the id of its answer (`chatcmpl-…`).
        reason: kept in the ledger and in the events; clients do not see it.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    rid = request_id(request)
    url = nats or running_stack(state_dir.resolve()).nats_url
    if not asyncio.run(_cancel(url, rid, reason)):
        sys.exit(_UNPROVED)


def drain(
    worker: str, *, wait: Seconds = 60.0, nats: str | None = None, state_dir: Path = STATE_DIR
) -> None:
    """Let a worker finish what runs, take nothing new, and end; nothing takes its place.

    Exit code 0: its process has ended; 1: it still runs, and goes on draining.

    Args:
        worker: a process of the stack (`decode-0`) or an instance on the bus.
        wait: seconds to follow it.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    place = state_dir.resolve()
    instance, slot = InstanceId(worker), _nothing_known
    if nats is None:
        nats = running_stack(place).nats_url
        known = slot_of(place, worker)
        instance = InstanceId(known.instance)

        def slot() -> SlotRecord | None:
            return slot_of(place, known.name)

    if not asyncio.run(_drain(nats, instance, slot, wait)):
        sys.exit(_UNPROVED)


def restart(slot: str, *, wait: Seconds = 120.0, state_dir: Path = STATE_DIR) -> None:
    """Drain one process of the stack and start another in its place, or start a drained one again.

    Returns when the new one is ready, so a rolling restart is one command after the other.

    Args:
        slot: a process of the stack (`decode-0`), or its instance.
        wait: seconds until the new process must be ready.
        state_dir: where the stack lives.
    """
    restart_slot(state_dir.resolve(), slot, wait, _say)


COMMANDS: tuple[Callable[..., None], ...] = (requests, cancel, drain, restart)
"""In the order in which `pdbus --help` lists them."""


async def _records(url: str, states: tuple[RequestState, ...], limit: int) -> list[RequestRecord]:
    async with visit(url) as bus:
        return await newest_requests(bus, states, limit)


async def _cancel(url: str, rid: RequestId, reason: str) -> bool:
    async with visit(url) as bus:
        return await cancel_request(bus, rid, reason, _say)


async def _drain(
    url: str, instance: InstanceId, slot: Callable[[], SlotRecord | None], wait_s: float
) -> bool:
    async with visit(url) as bus:
        return await drain_worker(bus, instance, slot, wait_s, _say)


def _nothing_known() -> SlotRecord | None:
    """Return None: the process is not kept by a supervisor here."""
    return None


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
