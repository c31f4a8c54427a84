"""The rows and cells of the crash matrix, and the fault that reaches a cell."""

from __future__ import annotations

import random

from tests.sim.scenario.plan import Fault, State, When

__all__ = ["CELLS", "ROWS", "Cell", "duration", "steered"]

Cell = tuple[str, State]
"""A row, and the state of a request."""

_ROLES = ("gateway", "router", "prefill", "decode", "cleanup")

ROWS: tuple[str, ...] = (
    "client leaves",
    "operator cancels",
    *(f"{role} killed" for role in _ROLES),
    "prefill engine dies",
    "decode engine dies",
    *(f"{role} drained" for role in _ROLES),
    "nats away, short",
    "nats away, long",
    "ledger away",
    *(f"{role} cut off" for role in _ROLES),
    *(f"{role} stopped" for role in _ROLES),
    "data plane cut",
    "clock jumps",
)
"""What goes wrong, one row each."""

_NONE = {("client leaves", State.S6)}
"""There is no client any more."""

CELLS: tuple[Cell, ...] = tuple(
    (row, state) for row in ROWS for state in State if (row, state) not in _NONE
)

_KINDS = {
    "client leaves": "leave",
    "operator cancels": "cancel",
    "nats away, short": "outage",
    "nats away, long": "outage",
    "ledger away": "store",
    "data plane cut": "plane-cut",
    "clock jumps": "clock",
    "killed": "crash",
    "engine dies": "engine",
    "drained": "drain",
    "cut off": "cut",
    "stopped": "pause",
}


def duration(rng: random.Random, kind: str, most: float) -> float:
    """Return how long a fault lasts: often as long as a silence that counts as a loss."""
    if kind in {"pause", "cut"} and rng.random() < 0.35:
        return rng.uniform(3.0, 5.5)
    return 10 ** rng.uniform(-1.0, most)


def steered(rng: random.Random, row: str, state: State, most: float) -> Fault:
    """Return a fault of a row that waits for a request to enter a state."""
    role, _, what = row.partition(" ")
    kind = _KINDS.get(row) or _KINDS[what]
    short = duration(rng, kind, most)
    if row == "nats away, short":
        short = 10 ** rng.uniform(-1.0, 0.55)
    elif row == "nats away, long":
        short = rng.uniform(4.5, 8.0)
    after = rng.choice((0.0, 0.0, 10 ** rng.uniform(-3.5, -0.5)))
    return Fault(
        kind,
        0.0,
        short,
        target=role if row not in _KINDS else "",
        value=rng.choice((0.0, 0.0, 3.0)) if kind == "crash" else rng.random(),
        flag=rng.random() < 0.5 or row == "ledger away",
        when=When(state, rng.choice((0, 0, 0, 1, 2)), after),
    )
