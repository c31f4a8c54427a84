"""The NATS service API (ADR-32): every process answers PING, INFO and STATS.

The stock `nats micro` tools list all services through it. The answers are built with nats-py's own
types, so that they cannot drift from what its readers expect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from nats.micro.service import (
    NAME_REGEX,
    SEMVER_REGEX,
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    ServiceVerb,
    control_subject,
)

from libs.bus.api import BusDown
from libs.bus.connect import Link
from libs.bus.endpoints import ServedEndpoint
from libs.bus.frames import Delivery, Handler
from libs.clock import Clock
from proto.ids import InstanceId

__all__ = ["ServiceApi", "ServiceIdentity"]


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """Who a process is, for the service API and for the connection's name.

    Args:
        service: name shared by all instances of one service, letters, digits, `-`, `_`.
        version: semantic version.
        instance: unique among the running; the id in the service API.
        metadata: facts for people, for example role, incarnation and model.
    """

    service: str
    version: str
    instance: InstanceId
    metadata: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not NAME_REGEX.match(self.service):
            raise ValueError(f"{self.service!r} is no service name")
        if not SEMVER_REGEX.match(self.version):
            raise ValueError(f"{self.version!r} is no semantic version")
        if not NAME_REGEX.match(self.instance):
            raise ValueError(f"{self.instance!r} cannot stand in a subject")


class ServiceApi:
    """Answers the control subjects of one process.

    Args:
        identity: who answers.
        link: the connection.
        endpoints: what is served at the moment of asking.
        clock: for the time of the start.
    """

    def __init__(
        self,
        identity: ServiceIdentity,
        link: Link,
        endpoints: Callable[[], Iterable[ServedEndpoint]],
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._link = link
        self._endpoints = endpoints
        self._metadata = dict(identity.metadata)
        self._started = datetime.fromtimestamp(clock.unix_ms() / 1000, UTC)

    def describe(self, **facts: str) -> None:
        """Set metadata that became known, or changed, after the start: a model, an incarnation."""
        self._metadata.update(facts)

    async def start(self) -> None:
        """Answer from now on, until the connection closes.

        There are three levels: all services, this service, this instance.
        """
        me = self._identity
        answers: dict[ServiceVerb, Callable[[], dict[str, object]]] = {
            ServiceVerb.PING: lambda: self.ping().to_dict(),
            ServiceVerb.INFO: lambda: self.info().to_dict(),
            ServiceVerb.STATS: lambda: self.stats().to_dict(),
        }
        levels = ((None, None), (me.service, None), (me.service, me.instance))
        await self._link.listen_all(
            {
                control_subject(verb, name, instance): self._reply(answer)
                for verb, answer in answers.items()
                for name, instance in levels
            }
        )

    def ping(self) -> ServicePing:
        """Return the answer to PING."""
        me = self._identity
        return ServicePing(
            id=me.instance, name=me.service, version=me.version, metadata=dict(self._metadata)
        )

    def info(self) -> ServiceInfo:
        """Return the answer to INFO."""
        me = self._identity
        return ServiceInfo(
            id=me.instance,
            name=me.service,
            version=me.version,
            description=f"pdbus {me.service}",
            metadata=dict(self._metadata),
            endpoints=[
                EndpointInfo(
                    name=served.endpoint.name,
                    subject=served.endpoint.subject,
                    queue_group=served.endpoint.queue or "",
                    metadata={"request": served.endpoint.request.__name__},
                )
                for served in self._endpoints()
            ],
        )

    def stats(self) -> ServiceStats:
        """Return the answer to STATS; times are nanoseconds."""
        me = self._identity
        return ServiceStats(
            id=me.instance,
            name=me.service,
            version=me.version,
            started=self._started,
            metadata=dict(self._metadata),
            endpoints=[_stats_of(served) for served in self._endpoints()],
        )

    def _reply(self, answer: Callable[[], dict[str, object]]) -> Handler:
        def receive(msg: Delivery) -> None:
            if not msg.reply:
                return
            try:
                self._link.post(msg.reply, json.dumps(answer()).encode())
            except BusDown:
                # Whoever asked has lost the connection as well, or asks again.
                return

        return receive


def _stats_of(served: ServedEndpoint) -> EndpointStats:
    finished = max(1, served.num_requests - served.inflight)
    return EndpointStats(
        name=served.endpoint.name,
        subject=served.endpoint.subject,
        queue_group=served.endpoint.queue or "",
        num_requests=served.num_requests,
        num_errors=served.num_errors,
        processing_time=served.processing_ns,
        average_processing_time=served.processing_ns // finished,
        last_error=served.last_error,
        data={"inflight": served.inflight},
    )
