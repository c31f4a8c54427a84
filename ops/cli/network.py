"""The commands of `pdbus` about the ways that KV takes, as the user writes them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from ops.cli.arguments import STATE_DIR
from ops.cli.doctor import Finding, Level, examine, examine_fleet, gather_facts
from ops.cli.errors import CommandError
from ops.cli.stack.record import running_stack
from ops.cli.views.link import visit
from ops.cli.views.pairs import PairRow, gather, pair_table
from ops.cli.views.screen import screen
from ops.cli.views.workers import listen

__all__ = ["NETWORK_COMMANDS", "doctor", "pairs"]

_STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.PROBLEM: "red",
}
Switch = Annotated[bool, Parameter(negative=())]


def pairs(
    *,
    probe: Switch = False,
    json: Switch = False,
    nats: str | None = None,
    state_dir: Path = STATE_DIR,
) -> None:
    """Show the way from each decode to each prefill worker: lane, latency, speed, and refusals.

    Args:
        probe: measure all ways again first; otherwise the figures are those of the registration.
        json: one JSON object a line.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    url = nats or running_stack(state_dir.resolve()).nats_url
    found = asyncio.run(_pairs(url, probe=probe))
    if json:
        for row in found:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    else:
        screen().print(pair_table(found))


def doctor(
    *,
    json: Switch = False,
    nats: str | None = None,
    state_dir: Path = STATE_DIR,
) -> None:
    """Look for what keeps KV from moving, or from moving fast, and say what to do about it.

    Looks at this host, and at the fleet where one runs. Exit code 1: there is a problem.

    Args:
        json: one JSON object a line.
        nats: address of the bus; default: that of the stack, if one runs.
        state_dir: where the stack lives.
    """
    found = examine(gather_facts(os.environ))
    url = nats or _stack_url(state_dir)
    if url is not None:
        found += asyncio.run(_fleet(url))
    if json:
        for finding in found:
            sys.stdout.write(msgspec.json.encode(finding).decode() + "\n")
    else:
        _show(found)
    if any(finding.level is Level.PROBLEM for finding in found):
        sys.exit(1)


def _stack_url(state_dir: Path) -> str | None:
    try:
        return running_stack(state_dir.resolve()).nats_url
    except CommandError:
        return None


def _show(found: Iterable[Finding]) -> None:
    console = screen()
    for finding in found:
        mark = Text(f"{finding.level:8}", style=_STYLES[finding.level])
        console.print(mark.append(f"{finding.check}: {finding.text}", style="default"))
        if finding.fix:
            console.print(Text(f"         → {finding.fix}", style="default"))


async def _fleet(url: str) -> list[Finding]:
    async with visit(url) as bus:
        beats = await listen(bus)
        return examine_fleet(beats, await gather(bus, probe=False))


async def _pairs(url: str, *, probe: bool) -> list[PairRow]:
    async with visit(url) as bus:
        return await gather(bus, probe=probe)


NETWORK_COMMANDS: tuple[Callable[..., None], ...] = (pairs, doctor)
"""In the order in which help lists them."""
