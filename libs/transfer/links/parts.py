"""What both sides of a plane share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from libs.transfer.api import PlaneSettings, PlaneStats
from libs.transfer.pages import PageStore
from libs.transfer.ucx import LaneContext, Loop
from libs.transfer.wire import HEADER_BYTES, SEAL_BYTES, WireLayout
from proto.kv import Lane, TransferReport

__all__ = ["Parts"]


@dataclass(slots=True)
class Parts:
    """Everything a side needs; only the plane's thread touches what can change."""

    store: PageStore
    layout: WireLayout
    settings: PlaneSettings
    incarnation: str
    host: str
    secret: bytes
    """What peers must know to be heard."""
    stats: PlaneStats
    loop: Loop
    changed: Callable[[], None]
    """To be called when a handle has come further."""
    reported: Callable[[TransferReport | None], None]
    """To be called once a room is over."""
    contexts: dict[Lane, LaneContext] = field(default_factory=dict[Lane, LaneContext])

    excluded: dict[Lane, str] = field(default_factory=dict[Lane, str])
    """Lanes of the settings that the environment excludes, and why."""

    @property
    def allowed_lanes(self) -> tuple[Lane, ...]:
        """The open lanes on which KV may move, best first."""
        required = self.settings.required
        return tuple(lane for lane in self.contexts if not required or lane in required)

    @property
    def excluded_text(self) -> str:
        """What the environment excludes, as the end of a sentence."""
        return "".join(f"; {why}" for why in self.excluded.values())

    @property
    def slab_bytes(self) -> int:
        """Length of a slab of ours: a row comes on top of a chunk's pages."""
        around = HEADER_BYTES + self.store.row_bytes + SEAL_BYTES
        return around + max(self.settings.chunk_bytes, self.store.page_bytes)

    @property
    def least_slab_bytes(self) -> int:
        """Length of a slab that fits the smallest chunk: a page of each buffer, and a row."""
        return HEADER_BYTES + self.store.page_bytes + self.store.row_bytes + SEAL_BYTES
