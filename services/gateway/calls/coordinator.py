"""Carries out calls: the part of the gateway that talks to the bus."""

from __future__ import annotations

from libs.bus.api import Bus, Store
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from proto.ids import Incarnation, InstanceId
from proto.ledger import RequestRecord, Sink
from services.gateway.api import Call
from services.gateway.calls.ledger import Ledger
from services.gateway.calls.live import LiveCall, Ports
from services.gateway.calls.mailroom import Mailroom

__all__ = ["Coordinator"]


class Coordinator:
    """Opens calls and keeps count of those that run."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        clock: Clock,
        tasks: Tasks,
        instance: InstanceId,
        incarnation: Incarnation,
    ) -> None:
        sink = Sink(gateway=instance, incarnation=incarnation)
        self._clock = clock
        self._mailroom = Mailroom(bus=bus, gateway=instance, incarnation=incarnation)
        self._ports = Ports(
            bus=bus,
            clock=clock,
            tasks=tasks,
            ledger=Ledger(store=store, clock=clock, sink=sink),
            mailroom=self._mailroom,
            chronicle=Chronicle(bus=bus, clock=clock, instance=instance),
        )

    @property
    def running(self) -> int:
        """Attempts that may still receive messages."""
        return len(self._mailroom)

    async def start(self) -> None:
        """Begin to receive answers."""
        await self._mailroom.start()

    async def drain(self, grace_s: float) -> bool:
        """Wait for running calls, then stop receiving; return whether all ended in time."""
        until = self._clock.monotonic() + grace_s
        while self.running and self._clock.monotonic() < until:
            await self._clock.sleep(0.05)
        settled = not self.running
        await self._mailroom.close()
        return settled

    async def open(self, call: Call) -> LiveCall:
        """Enter the call in the ledger, find a place, and start both sides.

        Cancelling the task that waits for this cancels the request.

        Raises:
            PdbusError: refused or failed before any token of the answer.
        """
        live = LiveCall(self._ports, call)
        await live.open()
        return live
