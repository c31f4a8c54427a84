"""The commands of `pdbus` about the ways that KV takes, as the user writes them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ops.cli.arguments import STATE_DIR
from ops.cli.stack.record import running_stack
from ops.cli.views.link import visit
from ops.cli.views.pairs import PairRow, gather, pair_table
from ops.cli.views.screen import screen

__all__ = ["NETWORK_COMMANDS", "pairs"]

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


async def _pairs(url: str, *, probe: bool) -> list[PairRow]:
    async with visit(url) as bus:
        return await gather(bus, probe=probe)


NETWORK_COMMANDS: tuple[Callable[..., None], ...] = (pairs,)
"""In the order in which help lists them."""
