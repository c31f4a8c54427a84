"""Progress without a terminal."""

from __future__ import annotations

from rich.console import Console

from ops.cli.stack.record import SlotRecord, SlotState, StackRecord, StackState
from ops.cli.views.display import Lines, LiveTable, display_for


def record(*slots: SlotRecord) -> StackRecord:
    """Return the record of a stack with these processes."""
    return StackRecord(
        supervisor=1,
        state=StackState.STARTING,
        nats_url="",
        urls=(),
        model="tiny",
        engine="scripted",
        started_ms=0,
        slots=slots,
    )


def slot(state: SlotState, reason: str = "", restarts: int = 0) -> SlotRecord:
    """Return the record of one process."""
    return SlotRecord(
        name="decode-0",
        role="decode",
        instance="decode-aaaaaaaa",
        pid=7,
        health_port=1,
        state=state,
        reason=reason,
        restarts=restarts,
    )


def test_each_change_is_one_line() -> None:
    """Off a terminal a line is written when a process changes, and only then."""
    console = Console(width=120)
    with console.capture() as capture:
        lines = Lines(console)
        for state in (
            slot(SlotState.STARTING, "loading [weights]"),
            slot(SlotState.STARTING, "loading [weights]"),
            slot(SlotState.READY),
            slot(SlotState.CRASHED, "killed by SIGKILL", 1),
        ):
            lines.show(record(state))
    told = [line.partition(" s  ")[2] for line in capture.get().splitlines()]
    assert told == [
        "decode-0: starting, loading [weights]",
        "decode-0: ready",
        "decode-0: crashed, killed by SIGKILL, restarts 1",
    ]


def test_a_terminal_gets_a_table() -> None:
    """On a terminal the processes stand in a table, which stays when the display settles."""
    console = Console(width=120, force_terminal=True, color_system=None)
    display = display_for(console)
    assert isinstance(display, LiveTable)
    with console.capture() as capture:
        display.show(record(slot(SlotState.READY)))
        display.settle()
    assert "decode-aaaaaaaa" in capture.get()
