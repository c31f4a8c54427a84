"""The bus and store ports: what services may do with NATS, and how it fails.

The same services run on `libs.bus.client.NatsBus` in production and on a simulated bus in
`tests/sim`. Delivery of `publish` is at most once; whoever needs more asks (`request`) or numbers
its messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from proto.base import Message
from proto.events import Event

__all__ = [
    "Bus",
    "BusDown",
    "BusError",
    "Conflict",
    "Endpoint",
    "Forbidden",
    "NoResponders",
    "RequestTimeout",
    "Store",
    "StoreUnknown",
    "Subscription",
    "TooLarge",
    "Versioned",
]

MessageT = TypeVar("MessageT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)
AnyT = TypeVar("AnyT")


class BusError(Exception):
    """The bus could not do what was asked."""


class NoResponders(BusError):
    """Nobody listens on the subject: the request was certainly not received."""


class RequestTimeout(BusError):
    """No reply in time: the request may or may not have been received."""


class BusDown(BusError):
    """There is no connection now: the message was certainly not sent."""


class Forbidden(BusError):
    """The server denies this process the subject; a fault of the deployment."""


class TooLarge(BusError):
    """The message with its headers does not fit the server's limit: it was not sent."""


class Conflict(BusError):
    """Compare-and-set failed: the record has another revision (or exists already)."""


class StoreUnknown(BusError):
    """No acknowledgement in time: the write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One verb that a service answers."""

    name: str
    subject: str
    request: type[Message]
    handler: Callable[[Any], Awaitable[Message]] | Callable[[Any], Message]
    """Returns the reply; raises `PdbusError` for a typed refusal. An `async` function runs as a
    task, concurrently with others; a plain one must never wait: it is called where the request is
    read, at the price of no task."""
    queue: str | None = None
    """Queue group; None means that every subscriber answers."""
    concurrency: int = 256
    """Most `async` handlers at once; more requests are refused with `saturated`."""


class Subscription(Protocol):
    """A running subscription or endpoint."""

    async def close(self) -> None:
        """Stop receiving; returns when no handler of it runs any more."""
        ...


class Bus(Protocol):
    """Messages between services."""

    @property
    def connected(self) -> bool:
        """Whether the server can be reached now."""
        ...

    @property
    def down_s(self) -> float:
        """Seconds since the connection was lost; 0 while connected."""
        ...

    async def publish(self, subject: str, message: Message) -> None:
        """Send to whoever listens, at most once, without trace headers.

        Raises:
            BusDown: there is no connection (nothing is buffered).
            TooLarge: the message does not fit.
        """
        ...

    def post(self, subject: str, message: Message) -> bool:
        """Publish and write at once; return False, and do neither, where `publish` had to wait.

        Raises:
            BusDown, TooLarge.
        """
        ...

    async def request(
        self, subject: str, message: Message, reply: type[ReplyT], *, timeout_s: float
    ) -> ReplyT:
        """Ask and wait for the answer, with the caller's trace context.

        Raises:
            PdbusError: the other side refused, with its code.
            NoResponders, RequestTimeout, BusDown, TooLarge.
        """
        ...

    async def subscribe(
        self, subject: str, kind: Any, handler: Callable[[str, Any], None]
    ) -> Subscription:
        """Call `handler(subject, message)` for each message; it must return at once.

        `kind` is a message class or a union of them; undecodable messages are counted and
        dropped. Events come one by one, however they travel. When this returns, messages that
        anyone publishes from now on will arrive.
        """
        ...

    async def serve(self, endpoint: Endpoint) -> Subscription:
        """Answer requests. When this returns, requests sent from now on by anyone will arrive."""
        ...

    def emit(self, event: Event) -> None:
        """Hand an event to the event stream, off the caller's path; lost only with the process.

        While the bus is down, events wait in a bounded buffer; an overflow is counted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Versioned(Generic[AnyT]):
    """A record and the revision to name in the next compare-and-set."""

    value: AnyT
    revision: int


class Store(Protocol[AnyT]):
    """A ledger of records, changed by compare-and-set only."""

    async def get(self, key: str) -> Versioned[AnyT] | None:
        """Return the newest record that this reader can see, or None.

        Raises:
            BusDown, RequestTimeout.
        """
        ...

    async def create(self, key: str, value: AnyT) -> int:
        """Write a record whose key must be absent; return its revision.

        Raises:
            Conflict: the key exists. StoreUnknown, BusDown.
        """
        ...

    async def update(self, key: str, value: AnyT, revision: int) -> int:
        """Replace the record that has `revision`; return the new revision.

        Raises:
            Conflict: it has another revision. StoreUnknown, BusDown.
        """
        ...

    def scan(self, since: int = 0) -> AsyncIterator[tuple[str, Versioned[AnyT]]]:
        """Go through all live records; for reconciliation, never on a request's path.

        With `since`, through those that have changed after that revision. Who has come to the end
        has seen all that was written up to the highest revision it was shown.

        Raises:
            BusDown, RequestTimeout.
        """
        ...
