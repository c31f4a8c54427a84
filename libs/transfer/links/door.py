"""Where decode engines knock: one accepting port a lane, and the judgement of a greeting."""

from __future__ import annotations

from collections.abc import Callable

from libs.transfer.api import KvLayout, PlaneStats, TransferFailure
from libs.transfer.ucx import Channel, LaneContext, TransportError
from libs.transfer.wire import ANY_TAG_MASK, VERSION, Hello, WireLayout
from proto.errors import ErrorCode
from proto.kv import Lane

__all__ = ["Door", "judge", "layout_differences", "wire_layout"]


class Door:
    """One accepting port; its address is public, so whatever arrives is dropped unless a hello.

    Args:
        context: the lane.
        stats: counters of the plane.
        knock: called with each greeting.
    """

    def __init__(
        self,
        context: LaneContext,
        stats: PlaneStats,
        knock: Callable[[LaneContext, Hello], None],
    ) -> None:
        self._stats = stats
        self._context = context
        self._knock = knock
        self._port = context.port()
        self._channel = Channel(self._port, 0, ANY_TAG_MASK, stats)
        self.fd = self._port.fd
        self.address = self._port.address

    def turn(self) -> tuple[bool, bool]:
        """Progress; return whether something came of it, and whether more is due at once."""
        return self._port.turn(self._work)

    def _work(self) -> bool:
        try:
            messages = self._channel.poll()
        except TransportError:
            # A receive can fail only by what a stranger sent.
            self._stats.malformed_messages += 1
            return True
        for message in messages:
            if isinstance(message, Hello):
                self._knock(self._context, message)
            else:
                self._stats.malformed_messages += 1
        return bool(messages)

    def close(self) -> None:
        """Destroy the port."""
        self._port.close()


def wire_layout(layout: KvLayout) -> WireLayout:
    """Return a layout as it travels."""
    return WireLayout(
        page_bytes=layout.page_bytes,
        row_bytes=layout.row_bytes,
        page_tokens=layout.page_tokens,
        compat=layout.compat,
        facts=dict(layout.facts),
    )


def layout_differences(mine: WireLayout, theirs: WireLayout) -> list[str]:
    """Return one phrase a field that differs, naming it."""
    names = sorted(mine.facts.keys() | theirs.facts.keys())
    found = [
        f"{name}: {mine.facts.get(name)} in prefill, {theirs.facts.get(name)} in decode"
        for name in names
        if mine.facts.get(name) != theirs.facts.get(name)
    ]
    # The digest says nothing that a named field has not said already.
    for name in ("page_tokens",) if found else ("page_tokens", "compat"):
        here, there = getattr(mine, name), getattr(theirs, name)
        if here != there:
            found.append(f"{name}: {here} in prefill, {there} in decode")
    for name in ("page_bytes", "row_bytes"):
        here, there = getattr(mine, name), getattr(theirs, name)
        if len(here) != len(there):
            found.append(f"{name}: {len(here)} buffers in prefill, {len(there)} in decode")
        elif here != there:
            place = next(i for i, (a, b) in enumerate(zip(here, there, strict=True)) if a != b)
            found.append(f"{name}[{place}]: {here[place]} in prefill, {there[place]} in decode")
    return found


def judge(
    hello: Hello,
    layout: WireLayout,
    incarnation: str,
    least_slab: int,
    required: tuple[Lane, ...] = (),
) -> TransferFailure | None:
    """Return why a greeting is refused, or None.

    Args:
        hello: the greeting.
        layout: of our memory.
        incarnation: ours.
        least_slab: bytes that must fit into decode's slabs.
        required: lanes on which KV may move; none means any.
    """
    if required and hello.lane not in required:
        detail = f"lane {hello.lane}: prefill requires {', '.join(required)}"
        return TransferFailure(ErrorCode.LANE_REFUSED, detail)
    if hello.version != VERSION:
        detail = f"version: {VERSION} in prefill, {hello.version} in decode"
        return TransferFailure(ErrorCode.VERSION_MISMATCH, detail)
    if hello.target != incarnation:
        detail = f"incarnation {hello.target} is gone"
        return TransferFailure(ErrorCode.PREFILL_LOST, detail)
    differences = layout_differences(layout, hello.layout)
    if differences:
        return TransferFailure(ErrorCode.VERSION_MISMATCH, "; ".join(differences))
    if hello.slab_bytes < least_slab:
        detail = f"slab_bytes: at least {least_slab} in prefill, {hello.slab_bytes} in decode"
        return TransferFailure(ErrorCode.VERSION_MISMATCH, detail)
    return None
