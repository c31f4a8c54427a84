"""The nats-server of a stack: one port and one message store for its whole life."""

from __future__ import annotations

import os
from pathlib import Path

from libs.bus import ServerNotFound, ServerOptions, find_server, server_config
from ops.cli.errors import CommandError
from ops.cli.stack.layout import SlotSpec
from ops.cli.stack.probe import nats_ready

__all__ = ["broker_slot", "processors"]

_STOP_LAST = 9
_PROCESSORS = "GOMAXPROCS"
_SHARE = 4
"""The server gets one processor of so many: it hands on small messages, and a Go program that may
have more than it needs spins on them while the engines and services of the host wait."""
_TIMER_SLACK_NS = 500_000
"""How late its timers may be. A thread of Go's runtime looks after the others all 20 us while they
run; the server runs for a moment many times a second, and each time that thread was woken thrice.
"""


def processors(machine: int) -> int:
    """Return on how many processors of a machine the server may run at a time."""
    return max(1, machine // _SHARE)


def broker_slot(state_dir: Path, port: int) -> SlotSpec:
    """Write the server's configuration and return its slot.

    Raises:
        CommandError: there is no nats-server on this machine.
    """
    try:
        program = find_server()
    except ServerNotFound as error:
        raise CommandError(str(error)) from error
    folder = state_dir / "nats"
    folder.mkdir(exist_ok=True)
    config = folder / "nats.conf"
    options = ServerOptions(port=port, store_dir=str(folder / "jetstream"))
    config.write_text(server_config(options))
    return SlotSpec(
        name="nats-0",
        role="nats",
        instance="nats",
        stop_rank=_STOP_LAST,
        argv=lambda _port: (str(program), "-c", str(config)),
        check=nats_ready,
        port=port,
        timer_slack_ns=_TIMER_SLACK_NS,
        env={_PROCESSORS: os.environ.get(_PROCESSORS) or str(processors(os.cpu_count() or 1))},
    )
