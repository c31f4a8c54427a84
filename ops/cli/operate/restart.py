"""Restarting one process of a stack: it drains, and another one takes its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ops.cli.errors import CommandError
from ops.cli.stack.control import Order, give_order
from ops.cli.stack.record import SlotRecord, SlotState, running_stack

__all__ = ["restart_slot", "slot_of"]

_POLL_S = 0.05


def slot_of(state_dir: Path, name: str) -> SlotRecord:
    """Return the slot of that name, or the one whose process has that instance id.

    Raises:
        CommandError: there is none.
    """
    record = running_stack(state_dir)
    named = next((slot for slot in record.slots if slot.instance == name), None)
    return named or record.slot(name)


def restart_slot(state_dir: Path, name: str, wait_s: float, say: Callable[[str], None]) -> bool:
    """Let a process end in order and return whether another one was ready within `wait_s`.

    Raises:
        CommandError: there is no such process, or its supervisor does not obey.
    """
    before = slot_of(state_dir, name)
    give_order(state_dir, Order(verb="restart", slot=before.name))
    began = time.monotonic()
    shown = ""
    while time.monotonic() - began < wait_s:
        now = slot_of(state_dir, before.name)
        told = f"{now.name}: {now.state}" + (f", {now.reason}" if now.reason else "")
        fresh = now.pid not in {None, before.pid}
        if told != shown and (fresh or now.state is not SlotState.READY):
            say(told)
            shown = told
        if fresh and now.state is SlotState.READY:
            return True
        time.sleep(_POLL_S)
    message = f"{before.name} is not ready after {wait_s:g} s"
    raise CommandError(message)
