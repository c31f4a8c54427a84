"""`pdbus up`, with each service sent to nats-server through an address of its own.

Run as a program, with the arguments of `pdbus`. Two variables say more: `CHAOS_ROUTES` is a JSON
object from slot names to NATS addresses, `CHAOS_MONITOR_PORT` opens nats-server's monitoring.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libs.lifecycle.parent import die_with_parent
from ops.cli.main import main
from ops.cli.stack import serve
from ops.cli.stack.layout import SlotSpec

__all__ = ["MONITOR", "ROUTES"]

ROUTES = "CHAOS_ROUTES"
MONITOR = "CHAOS_MONITOR_PORT"

Argv = Callable[[int], Sequence[str]]


def _routed(argv: Argv, url: str) -> Argv:
    def command(port: int) -> Sequence[str]:
        words = list(argv(port))
        words[words.index("--nats") + 1] = url
        return words

    return command


def _monitored(argv: Argv, port: str) -> Argv:
    return lambda own: (*argv(own), "-m", port)


def _reroute(routes: Mapping[str, str], monitor: str | None) -> None:
    services, broker = serve.service_slots, serve.broker_slot

    def service_slots(*arguments: Any) -> list[SlotSpec]:
        return [
            dataclasses.replace(spec, argv=_routed(spec.argv, routes[spec.name]))
            if spec.name in routes
            else spec
            for spec in services(*arguments)
        ]

    def broker_slot(*arguments: Any) -> SlotSpec:
        spec = broker(*arguments)
        if monitor is None:
            return spec
        return dataclasses.replace(spec, argv=_monitored(spec.argv, monitor))

    serve.service_slots = service_slots
    serve.broker_slot = broker_slot


if __name__ == "__main__":
    die_with_parent()
    _reroute(json.loads(os.environ.get(ROUTES, "{}")), os.environ.get(MONITOR))
    main()
