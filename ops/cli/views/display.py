"""Telling the user what a stack does: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.cli.stack.record import SlotRecord, SlotState, StackRecord

__all__ = ["Display", "Lines", "LiveTable", "display_for"]

_STYLES = {
    SlotState.STARTING: "yellow",
    SlotState.READY: "green",
    SlotState.DRAINING: "yellow",
    SlotState.DRAINED: "bright_black",
    SlotState.CRASHED: "red",
    SlotState.STOPPED: "bright_black",
}


class Display(Protocol):
    """Where progress is shown."""

    def say(self, text: str) -> None:
        """Show one sentence that stays."""
        ...

    def show(self, record: StackRecord) -> None:
        """Show the state of all processes."""
        ...

    def settle(self) -> None:
        """Leave the screen to other output; what is shown now stays."""
        ...


class Lines:
    """One plain line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._shown: dict[str, tuple[SlotState, str]] = {}

    def say(self, text: str) -> None:
        """Show one sentence."""
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, record: StackRecord) -> None:
        """Show each process that has changed since the last call."""
        for slot in record.slots:
            told = (slot.state, slot.reason)
            if self._shown.get(slot.name) != told:
                self._shown[slot.name] = told
                self.say(f"{slot.name}: {slot.state}{_because(slot)}")

    def settle(self) -> None:
        """Nothing is held on the screen."""


class LiveTable:
    """A table of all processes that is drawn again with each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Show one sentence above the table."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, record: StackRecord) -> None:
        """Draw the table."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._live.update(self._table(record), refresh=True)

    def settle(self) -> None:
        """Leave the last table on the screen and stop drawing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self, record: StackRecord) -> Table:
        title = f"{record.model} · {record.engine} · {time.monotonic() - self._began:.0f} s"
        table = Table(title=title, title_justify="left", box=None)
        for heading in ("process", "instance", "pid", "state", ""):
            table.add_column(heading, no_wrap=heading != "")
        for slot in record.slots:
            table.add_row(
                slot.name,
                slot.instance,
                str(slot.pid or ""),
                Text(slot.state, style=_STYLES[slot.state]),
                _because(slot).removeprefix(", "),
            )
        return table


def display_for(console: Console) -> Display:
    """Return the display that suits where the console writes to."""
    return LiveTable(console) if console.is_terminal else Lines(console)


def _because(slot: SlotRecord) -> str:
    parts = [slot.reason] if slot.reason and slot.reason != slot.state else []
    if slot.restarts:
        parts.append(f"restarts {slot.restarts}")
    return "".join(f", {part}" for part in parts)
