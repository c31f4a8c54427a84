"""The gateway service: HTTP in front, calls behind, and an orderly end of both."""

from __future__ import annotations

from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import get_logger
from services.gateway.calls.coordinator import Coordinator
from services.gateway.edge import EdgeServer
from services.gateway.fleet import GatewayFleet
from services.gateway.tenants import Directory

__all__ = ["GatewayService"]


class GatewayService:
    """Listens from its first moment on; answers 503 with a reason until it is ready."""

    def __init__(
        self,
        *,
        calls: Coordinator,
        fleet: GatewayFleet,
        server: EdgeServer,
        clock: Clock,
        tasks: Tasks,
        directory: Directory | None = None,
    ) -> None:
        self._calls = calls
        self._fleet = fleet
        self._server = server
        self._clock = clock
        self._tasks = tasks
        self._directory = directory

    async def start(self) -> None:
        """Begin to serve and to warm up."""
        await self._calls.start()
        await self._fleet.start()
        self._tasks.spawn(self._server.serve(), name="http")
        if self._directory is not None:
            self._tasks.spawn(self._directory.watch(), name="watch keys")
        get_logger().info("http listening", port=self._server.port)

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests, let running answers end; those that do not are told so and ended."""
        began_s = self._clock.monotonic()
        await self._fleet.drain()
        await self._server.stop(grace_s)
        left_s = max(0.0, grace_s - (self._clock.monotonic() - began_s))
        await self._calls.drain(left_s)
        await self._fleet.close()

    def readiness(self) -> tuple[bool, str]:
        """Return whether requests can be served now, and if not, why."""
        state = self._fleet.readiness()
        return state.ok, state.reason
