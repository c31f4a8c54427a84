"""What a service is to the process that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from libs.bus.api import Bus, Store
from libs.clock.api import Clock
from libs.config import ServiceSettings
from libs.lifecycle.health import Readiness
from libs.lifecycle.tasks import Tasks
from proto.ids import Incarnation, InstanceId
from proto.ledger import RequestRecord
from proto.results import StoredResult

__all__ = ["Build", "Parts", "Service"]

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


class Service(Protocol):
    """The object that a service's `build` makes."""

    async def start(self) -> None:
        """Begin to work; slow things (an engine that loads) go on in tasks after this returns."""
        ...

    async def drain(self, grace_s: float) -> None:
        """Refuse new work and let running work end within the grace; end what is left."""
        ...

    def readiness(self) -> Readiness:
        """Return whether work may come; cheap, and true to the moment."""
        ...


@dataclass(frozen=True, slots=True)
class Parts(Generic[SettingsT]):
    """What a process gives to its service."""

    settings: SettingsT
    instance: InstanceId
    incarnation: Incarnation
    bus: Bus
    store: Store[RequestRecord]
    results: Store[StoredResult]
    clock: Clock
    tasks: Tasks
    stop: Callable[[], None]
    """Asks the process to end in order, as the first signal does."""


Build = Callable[[Parts[SettingsT]], Awaitable[Service]]
"""Makes a service from its parts; the only place where a service's objects are put together."""
