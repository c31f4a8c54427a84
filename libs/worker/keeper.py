"""Keeps one engine alive: loads it, watches it, and replaces it with a new incarnation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from libs.clock.api import Clock
from libs.engine import Engine, EngineDead, EngineFactory
from libs.telemetry import get_logger
from proto.host import EngineReady
from proto.ids import new_incarnation

__all__ = ["EngineKeeper", "EngineWatch"]

_BACKOFF_S = (0.2, 1.0, 2.0, 5.0)
_STABLE_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineWatch:
    """What the worker does at each turn of its engine's life."""

    loading: Callable[[Engine], None]
    ready: Callable[[Engine, EngineReady], Awaitable[None]]
    lost: Callable[[Engine, str], Awaitable[None]]


class EngineKeeper:
    """Runs one incarnation after the other until it is closed."""

    def __init__(self, *, clock: Clock, engines: EngineFactory, watch: EngineWatch) -> None:
        self._clock = clock
        self._engines = engines
        self._watch = watch
        self._engine: Engine | None = None
        self._closed = False

    async def run(self) -> None:
        """Keep an engine alive until `close` is called."""
        failures = 0
        while not self._closed:
            engine = self._engines(new_incarnation(self._clock.entropy))
            self._engine = engine
            self._watch.loading(engine)
            began = self._clock.monotonic()
            reason = await self._live(engine)
            if self._closed:
                return
            get_logger().error("engine lost", incarnation=engine.incarnation, reason=reason)
            await self._watch.lost(engine, reason)
            await engine.stop()
            stable = self._clock.monotonic() - began > _STABLE_S
            failures = 1 if stable else failures + 1
            await self._clock.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])

    async def close(self) -> None:
        """End the engine; no new one is started."""
        self._closed = True
        if self._engine is not None:
            await self._engine.stop()

    async def _live(self, engine: Engine) -> str:
        try:
            ready = await engine.start()
        except EngineDead as error:
            return str(error)
        if not self._closed:
            await self._watch.ready(engine, ready)
        return await engine.wait_dead()
