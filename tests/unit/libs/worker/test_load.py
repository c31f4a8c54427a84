"""What a worker shows of its engine's data plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from libs.engine import Engine
from libs.worker.load import expose
from proto.host import EngineLoad
from proto.workers import Role


class Loaded:
    """An engine with figures."""

    def load(self) -> EngineLoad:
        return EngineLoad(open_rooms=3, dropped_chunks=7, unshared_links=2)


def test_late_and_foreign_chunks_are_shown(metric: Callable[..., float]) -> None:
    """What the data plane counts is that of the present engine; without one, nothing."""
    engine: list[Any] = []
    expose(lambda: cast("Engine", engine[0]) if engine else None, Role.PREFILL)
    assert metric("pdbus.kv.dropped_chunks", role="prefill") == 0
    engine.append(Loaded())
    assert metric("pdbus.kv.dropped_chunks", role="prefill") == 7
    assert metric("pdbus.kv.inflight_transfers", role="prefill") == 3
    assert metric("pdbus.kv.unshared_links", role="prefill") == 2
