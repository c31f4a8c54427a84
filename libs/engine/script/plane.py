"""The KV memory of a scripted engine as the data plane sees it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from libs.engine.options import HostOptions
from libs.engine.script.memory import ROW_WORDS, KvMemory
from libs.transfer.api import DataPlane, KvLayout, PagePool, PlaneSettings, Wake
from proto.workers import CompatCard

__all__ = ["OpenPlane", "layout_of", "open_ucx", "plane_settings", "pools_of"]

OpenPlane = Callable[[HostOptions, KvMemory, CompatCard, Wake], DataPlane]
"""Opens the data plane of one engine."""


def open_ucx(options: HostOptions, memory: KvMemory, card: CompatCard, wake: Wake) -> DataPlane:
    """Open the UCX data plane.

    Raises:
        PdbusError: a lane in the options cannot be had.
    """
    plane = import_module("libs.transfer.plane")
    pages, rows = pools_of(memory)
    return cast(
        "DataPlane",
        plane.UcxPlane(
            layout_of(memory, card),
            pages,
            rows,
            plane_settings(options),
            options.incarnation,
            wake=wake,
        ),
    )


def layout_of(memory: KvMemory, card: CompatCard) -> KvLayout:
    """Return the layout that both sides of a transfer must share."""
    page_bytes = memory.page_size * memory.words * 8
    return KvLayout(
        page_bytes=(page_bytes,) * memory.buffers,
        row_bytes=(ROW_WORDS * 8,),
        page_tokens=memory.page_size,
        compat=card.digest,
        facts=tuple((name, str(getattr(card, name))) for name in card.__struct_fields__),
    )


def pools_of(memory: KvMemory) -> tuple[PagePool, PagePool]:
    """Return the pages and the auxiliary rows as bytes."""
    return PagePool(memory.page_arrays), PagePool([memory.row_array])


def plane_settings(options: HostOptions) -> PlaneSettings:
    """Return the settings of the data plane that the host was given."""
    return PlaneSettings(
        lanes=options.lanes,
        required=options.required,
        interface=options.interface,
        chunk_bytes=options.chunk_bytes,
        checksum_every=options.checksum_every,
        credits=options.credits,
        connect_timeout_s=options.connect_timeout_s,
        want_timeout_s=options.want_timeout_s,
        transfer_timeout_s=options.transfer_timeout_s,
    )
