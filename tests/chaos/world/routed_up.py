"""`pdbus up`, with each service sent to nats-server through an address of its own.

Run as a program, with the arguments of `pdbus`. Variables say more: `CHAOS_ROUTES` is a JSON
object from slot names to NATS addresses, `CHAOS_MORE` one from slot names to further arguments,
`CHAOS_MONITOR_PORT` opens nats-server's monitoring.
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

__all__ = ["MONITOR", "MORE", "ROUTES"]

ROUTES = "CHAOS_ROUTES"
MORE = "CHAOS_MORE"
MONITOR = "CHAOS_MONITOR_PORT"

Argv = Callable[[int], Sequence[str]]


def _routed(argv: Argv, url: str) -> Argv:
    def command(port: int) -> Sequence[str]:
        words = list(argv(port))
        words[words.index("--nats") + 1] = url
        return words

    return command


def _with_more(argv: Argv, more: Sequence[str]) -> Argv:
    return lambda port: (*argv(port), *more)


def _monitored(argv: Argv, port: str) -> Argv:
    return lambda own: (*argv(own), "-m", port)


def _reroute(
    routes: Mapping[str, str], more: Mapping[str, Sequence[str]], monitor: str | None
) -> None:
    services, broker = serve.service_slots, serve.broker_slot

    def service_slots(*arguments: Any) -> list[SlotSpec]:
        found: list[SlotSpec] = []
        for spec in services(*arguments):
            argv = _with_more(spec.argv, more.get(spec.name, ()))
            if spec.name in routes:
                argv = _routed(argv, routes[spec.name])
            found.append(dataclasses.replace(spec, argv=argv))
        return found

    def broker_slot(*arguments: Any) -> SlotSpec:
        spec = broker(*arguments)
        if monitor is None:
            return spec
        return dataclasses.replace(spec, argv=_monitored(spec.argv, monitor))

    serve.service_slots = service_slots
    serve.broker_slot = broker_slot


if __name__ == "__main__":
    die_with_parent()
    _reroute(
        json.loads(os.environ.get(ROUTES, "{}")),
        json.loads(os.environ.get(MORE, "{}")),
        os.environ.get(MONITOR),
    )
    main()
