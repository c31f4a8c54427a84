"""The crash matrix: in which state a request was when something went wrong around it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from proto.ids import RequestId
from tests.sim.progress import Standing
from tests.sim.scenario import Fault, State
from tests.sim.scenario.cells import CELLS, ROWS, Cell

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Matrix", "missing", "table"]

_LONG_OUTAGE_S = 4.0
"""Longer than a stream survives without a bus."""
_VERBS = {
    "crash": "killed",
    "engine": "engine dies",
    "drain": "drained",
    "cut": "cut off",
    "pause": "stopped",
}
_WORKERS = frozenset({"prefill", "decode"})


class Matrix:
    """Counts the cells that one world reaches."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hits: Counter[Cell] = Counter()

    def fault(self, fault: Fault, target: str, about: RequestId | None = None) -> None:
        """Count a fault that happens now.

        Args:
            fault: what happens.
            target: the process that it happens to, if it happens to one.
            about: the only request that it happens to, if that is so.
        """
        row = self._row(fault, target)
        if row not in ROWS:
            return
        for standing in self._world.progress.standing.values():
            if standing.cleaned or (about is not None and standing.rid != about):
                continue
            if about is None and not self._touches(fault, target, standing):
                continue
            cell = (row, standing.state)
            if cell in CELLS:
                self.hits[cell] += 1

    def _row(self, fault: Fault, target: str) -> str:
        if fault.kind == "outage":
            return f"nats away, {'long' if fault.for_s > _LONG_OUTAGE_S else 'short'}"
        if fault.kind == "store":
            return "ledger away" if fault.flag else ""
        simple = {
            "leave": "client leaves",
            "cancel": "operator cancels",
            "plane-cut": "data plane cut",
            "clock": "clock jumps",
        }
        if fault.kind in simple:
            return simple[fault.kind]
        verb = _VERBS.get(fault.kind)
        return f"{self._role(target)} {verb}" if verb else ""

    def _role(self, target: str) -> str:
        role = self._world.scenario.names.get(target, "")
        return "decode" if role == "aggregated" else role

    def _touches(self, fault: Fault, target: str, standing: Standing) -> bool:
        """Return whether a fault hits a process that the request depends on."""
        role = self._role(target)
        names = self._world.names
        placement = standing.placement
        if fault.kind == "plane-cut" and placement is not None and placement.prefill is not None:
            pair = {
                names.get(placement.prefill.incarnation),
                names.get(placement.decode.incarnation),
            }
            return pair == {target, fault.other}
        if role == "gateway":
            return names.get(standing.gateway) == target
        if role not in _WORKERS or placement is None:
            # Before it has a place, any worker might become its own.
            return fault.kind != "plane-cut" or placement is None
        ref = placement.prefill if role == "prefill" else placement.decode
        return ref is not None and names.get(ref.incarnation) == target


def missing(hits: Counter[Cell]) -> list[Cell]:
    """Return the cells that were not reached."""
    return [cell for cell in CELLS if not hits[cell]]


def table(hits: Counter[Cell]) -> str:
    """Return the matrix as lines: how often each cell was reached."""
    width = max(len(row) for row in ROWS)
    lines = [f"{'':{width}}" + "".join(f"{state:>7}" for state in State)]
    lines += [
        f"{row:{width}}" + "".join(_number(hits, row, state) for state in State) for row in ROWS
    ]
    reached = len(CELLS) - len(missing(hits))
    lines.append(f"{reached} of {len(CELLS)} cells reached")
    return "\n".join(lines)


def _number(hits: Counter[Cell], row: str, state: State) -> str:
    return f"{hits[row, state]:>7}" if (row, state) in CELLS else f"{'-':>7}"
