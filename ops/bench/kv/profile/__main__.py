"""Print the timeline of one transfer: `python -m ops.bench.kv.profile --lane cma --size 64`.

The transfer shown is the first quartile of many by its time. Decode's steps stand to the left,
prefill's to the right, each with its begin and its length in microseconds; what a step contains is
indented. Below is what each plane's thread did between the ask and the end, by kind of work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

from ops.bench.kv.ours import Ours
from ops.bench.kv.profile.tape import COPY, DIGEST, SLEEP, UCX, Note
from ops.bench.kv.shapes import LAYOUTS, Cell
from proto.kv import Lane

__all__ = ["main", "shares", "timeline"]

_US = 1000.0
_KINDS = (COPY, DIGEST, UCX)
_PAUSE_S = 0.002
_COLUMN = 44
_AFTER_NS = 200_000
"""How long after the end steps are still shown."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="ops.bench.kv.profile", description=__doc__)
    parser.add_argument("--lane", type=Lane, default=Lane.SYSV)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="8b")
    parser.add_argument("--page", type=int, default=16, help="tokens of a page")
    parser.add_argument("--size", type=float, default=16.0, help="MiB")
    parser.add_argument("--apart", action="store_true", help="no two pages are neighbours")
    parser.add_argument("--times", type=int, default=40)
    given = parser.parse_args()
    cell = Cell(LAYOUTS[given.layout], given.page, int(given.size * (1 << 20)), given.apart)
    ours = Ours(given.lane, cell)
    try:
        ours.prepare(cell)
        ours.wind()
        found = [ours.noted(cell, _PAUSE_S) for _ in range(given.times)]
    finally:
        ours.close()
    found.sort(key=lambda one: one[0])
    seconds, decode, prefill = found[len(found) // 4]
    print(f"{given.lane}, {cell.name}, {cell.moved / (1 << 20):.2f} MiB: {seconds * 1e6:.0f} us;")
    others = ", ".join(f"{one[0] * 1e6:.0f}" for one in found[:: max(1, len(found) // 8)])
    print(f"of {len(found)}: {others}\n")
    began = next(note.began for note in decode if note.step == "fetch")
    ended = began + int(seconds * 1e9)
    for line in timeline(decode, prefill, began, ended):
        print(line)
    for name, notes in (("decode", decode), ("prefill", prefill)):
        parts = shares([note for note in notes if note.step != "fetch"], began, ended)
        print(f"{name}: " + ", ".join(f"{kind} {spent:.0f} us" for kind, spent in parts.items()))


def timeline(
    decode: Sequence[Note], prefill: Sequence[Note], began: int, ended: int
) -> Iterator[str]:
    """Go through the steps of both processes in the order of their begin."""
    steps = [
        (note, depth, side)
        for side, notes in enumerate((decode, prefill))
        for note, depth, _ in _nested(notes)
        if note.ended > began and note.began < ended + _AFTER_NS
    ]
    for note, depth, side in sorted(steps, key=lambda step: (step[0].began, -step[0].ended)):
        margin = " " * (side * _COLUMN + 2 * depth)
        waited = f", no core {note.waited / _US:.0f}" if note.waited > _US else ""
        length = (note.ended - note.began) / _US
        yield f"{(note.began - began) / _US:9.0f} {margin}{note.step} {length:.0f}{waited}"
    yield f"{(ended - began) / _US:9.0f} the end\n"


def shares(notes: Sequence[Note], began: int, ended: int) -> dict[str, float]:
    """Return the microseconds of each kind of work of one thread within a span of time."""
    found: Counter[str] = Counter()
    span = ended - began
    for note, _, inner in _nested(notes):
        within = min(note.ended, ended) - max(note.began, began)
        if within <= 0:
            continue
        kind = note.step.split()[0]
        waited = min(note.waited, within)
        own = max(0, within - inner)
        found["no core"] += waited
        found[kind if kind in (*_KINDS, SLEEP) else "Python"] += own - waited
    found["Python"] += span - sum(found.values())
    return {kind: spent / _US for kind, spent in found.most_common()}


def _nested(notes: Sequence[Note]) -> Iterator[tuple[Note, int, int]]:
    """Go through notes with their depth, and the time of the steps directly within each."""
    ordered = sorted(notes, key=lambda note: (note.began, -note.ended))
    inner = [0] * len(ordered)
    depths = [0] * len(ordered)
    stack: list[int] = []
    for place, note in enumerate(ordered):
        while stack and ordered[stack[-1]].ended < note.ended:
            stack.pop()
        depths[place] = len(stack)
        if stack:
            inner[stack[-1]] += note.ended - note.began
        stack.append(place)
    yield from zip(ordered, depths, inner, strict=True)


if __name__ == "__main__":
    main()
