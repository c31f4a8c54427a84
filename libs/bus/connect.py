"""One connection to NATS: settings, callbacks, reconnection, and the only way to send on it.

Whoever uses a `Link` sees the errors of `libs.bus.api`, never those of nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from nats import errors
from nats.aio.client import Server
from nats.aio.subscription import Subscription
from nkeys import NkeysError

from libs.bus.api import BusDown, BusError, Forbidden, NoResponders, RequestTimeout, TooLarge
from libs.bus.frames import Delivery, Handler, head_of
from libs.bus.settings import BusSettings, tls_context
from libs.bus.wire import CONGESTED_BYTES, WireClient
from libs.clock import Clock
from libs.telemetry import count, get_logger, names
from proto.subjects import template

__all__ = ["BusNotStarted", "Link"]

_CONGESTED_WAIT_S = 1.0
_KEPT_PERMISSION_ERRORS = 64


class BusNotStarted(BusError):
    """The bus cannot be used as it is configured, or was not reached in time."""


class Link:
    """A connection that comes back by itself, for ever.

    Args:
        settings: how to connect.
        name: the connection's name in the server's monitoring.
        inbox: prefix of all reply subjects, so that permissions can isolate them.
        clock: for the age of an outage and for jitter.
    """

    def __init__(self, settings: BusSettings, *, name: str, inbox: str, clock: Clock) -> None:
        self.client = WireClient()
        self.settings = settings
        self.name = name
        self.permission_errors: list[str] = []
        """What the server denied, newest last; a service that has any is not ready."""
        self.warnings: tuple[str, ...] = ()
        """What is wrong with the server's configuration, for readiness and people."""
        self._inbox = inbox
        self._clock = clock
        self._opening = True
        self._closing = False
        self._attempts = 0
        self._denials = 0
        self._lost = False
        self._down_since: float | None = None

    @property
    def connected(self) -> bool:
        """Whether the server can be reached now."""
        return self.client.is_connected

    @property
    def down_s(self) -> float:
        """Seconds since the connection was lost; 0 while connected."""
        if self.client.is_connected:
            return 0.0
        if self._down_since is None:
            self._down_since = self._clock.monotonic()
        return self._clock.monotonic() - self._down_since

    @property
    def congested(self) -> bool:
        """Whether the server lags so far behind that `publish` waits for it."""
        return self.client.pending_data_size > CONGESTED_BYTES

    async def open(self) -> None:
        """Connect, within the start-up deadline.

        Raises:
            BusNotStarted: no server was reached, it refused our key, or its limits are too low.
        """
        settings = self.settings
        try:
            async with asyncio.timeout(settings.startup_deadline_s):
                await self.client.connect(**self._options())
        except BusNotStarted:
            await self.close()
            raise
        except TimeoutError as error:
            await self.close()
            raise BusNotStarted(
                f"no NATS server answered at {', '.join(settings.urls)} within "
                f"{settings.startup_deadline_s:g} s (last error: {self.client.last_error!r})"
            ) from error
        except (errors.Error, NkeysError, OSError, ValueError) as error:
            await self.close()
            raise BusNotStarted(f"cannot connect to NATS: {error}") from error
        self._opening = False
        if self.client.max_payload < settings.min_max_payload:
            limit = self.client.max_payload
            await self.close()
            raise BusNotStarted(
                f"the NATS server's max_payload is {limit} bytes; "
                f"{settings.min_max_payload} are needed"
            )

    async def check_inbox(self) -> None:
        """Make sure that replies can reach us.

        Raises:
            Forbidden: the server denies our inbox. BusDown, RequestTimeout.
        """
        subscription = await self.listen(self.client.new_inbox(), lambda _: None)
        await self.client.stop_subscription(subscription, self.settings.barrier_timeout_s)

    async def close(self) -> None:
        """Close the connection, whatever state it is in."""
        self._closing = True
        # A socket that is gone already makes nats-py (OSError) or uvloop (RuntimeError) complain.
        with contextlib.suppress(errors.Error, OSError, RuntimeError):
            await self.client.close()

    async def barrier(self, timeout_s: float | None = None) -> None:
        """Return when the server has processed all that was sent before, also for others' eyes.

        Raises:
            BusDown, RequestTimeout.
        """
        client = self.client
        limit = timeout_s if timeout_s is not None else self.settings.barrier_timeout_s
        try:
            async with asyncio.timeout(limit):
                while client.is_connected:
                    epoch = client.stats["reconnects"]
                    await client.settle(limit)
                    if client.is_connected and client.stats["reconnects"] == epoch:
                        return
        except TimeoutError as error:
            raise RequestTimeout("the server did not confirm in time") from error
        except errors.Error as error:
            raise BusDown(str(error)) from error
        raise BusDown("there is no connection to NATS")

    async def publish(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        reply: str = "",
    ) -> None:
        """Send at most once; nothing is kept for later.

        Raises:
            BusDown, TooLarge.
        """
        if self.congested:
            await self._relieve()
        self.post(subject, data, headers, reply=reply)

    def post(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        reply: str = "",
    ) -> None:
        """Send as `publish` does, without waiting for a server that lags behind.

        Raises:
            BusDown, TooLarge.
        """
        client = self.client
        head = head_of(headers) if headers else None
        size = len(data) + len(head) if head else len(data)
        if size > client.max_payload and client.is_connected:
            self._refuse_size(subject, size)
        try:
            client.send(subject, reply, data, head)
        except (
            errors.OutboundBufferLimitError,
            errors.ConnectionClosedError,
            errors.ConnectionDrainingError,
        ) as error:
            raise BusDown(str(error) or "there is no connection to NATS") from error

    async def ask(
        self, subject: str, data: bytes, head: bytes | None, timeout_s: float
    ) -> Delivery:
        """Send a request and return the first reply.

        Args:
            subject: whom to ask.
            data: what.
            head: headers as they stand on the wire.
            timeout_s: how long to wait.

        Raises:
            NoResponders, RequestTimeout, BusDown, TooLarge.
        """
        client = self.client
        size = len(data) + len(head) if head else len(data)
        if timeout_s <= 0 or not client.takes(size):
            timeout_s = await self._clear(subject, size, timeout_s)
        try:
            return await client.ask(subject, data, head, timeout_s)
        except errors.NoRespondersError as error:
            raise NoResponders(template(subject)) from error
        except errors.TimeoutError as error:
            raise RequestTimeout(template(subject)) from error
        except (
            errors.OutboundBufferLimitError,
            errors.ConnectionClosedError,
            errors.ConnectionDrainingError,
        ) as error:
            raise BusDown(str(error)) from error

    async def _clear(self, subject: str, size: int, timeout_s: float) -> float:
        """Make sure that a question can leave; return how long its answer may take then."""
        client = self.client
        if not client.is_connected:
            raise BusDown("there is no connection to NATS")
        if timeout_s <= 0:
            raise RequestTimeout("there was no time left to ask")
        if size > client.max_payload:
            self._refuse_size(subject, size)
        started = self._clock.monotonic()
        if client.pending_data_size > CONGESTED_BYTES:
            await self._relieve()
        return max(0.0, timeout_s - (self._clock.monotonic() - started))

    async def listen(
        self, subject: str, handler: Handler, *, queue: str | None = None
    ) -> Subscription:
        """Subscribe; messages that anyone publishes from now on will arrive.

        Raises:
            Forbidden: the server denies it. BusDown, RequestTimeout.
        """
        return (await self.listen_all({subject: handler}, queue=queue))[0]

    async def listen_all(
        self, handlers: Mapping[str, Handler], *, queue: str | None = None
    ) -> list[Subscription]:
        """Subscribe to some subjects at the price of one round trip, or to none of them."""
        client = self.client
        if not client.is_connected:
            raise BusDown("there is no connection to NATS")
        denials = self._denials
        made: list[Subscription] = []
        heard = False
        try:
            for subject, handler in handlers.items():
                made.append(await self._subscribe(subject, handler, queue or ""))
            await self.barrier()
            self._check_denials(handlers, denials)
            heard = True
        finally:
            if not heard:
                for subscription in made:
                    await client.stop_subscription(subscription, 0.0)
        return made

    async def _subscribe(self, subject: str, handler: Handler, queue: str) -> Subscription:
        try:
            return await self.client.hear(subject, queue, handler)
        except (errors.ConnectionClosedError, errors.ConnectionDrainingError) as error:
            raise BusDown(str(error)) from error

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "servers": list(settings.urls),
            "name": self.name,
            "connect_timeout": settings.connect_timeout_s,
            "reconnect_time_wait": settings.reconnect_wait_s,
            "max_reconnect_attempts": -1,
            "ping_interval": settings.ping_interval_s,
            "max_outstanding_pings": settings.max_outstanding_pings,
            "pending_size": 0,
            "flush_timeout": settings.barrier_timeout_s,
            "inbox_prefix": self._inbox,
            "nkeys_seed": settings.nkey_seed_file,
            "tls": tls_context(settings),
            "tls_handshake_first": settings.tls_handshake_first,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
            "lame_duck_mode_cb": self._on_lame_duck,
            "reconnect_to_server_handler": self._next_server,
        }

    def _next_server(
        self, servers: list[Server], _info: dict[str, Any]
    ) -> tuple[Server | None, float]:
        settings = self.settings
        exponent = min(self._attempts, 16)
        wait = min(settings.reconnect_wait_s * 2**exponent, settings.reconnect_wait_max_s)
        share = 0.5 + self._clock.entropy.getrandbits(16) / 131_072
        server = servers[self._attempts % len(servers)]
        self._attempts += 1
        return server, wait * share

    async def _relieve(self) -> None:
        """Wait until the socket takes data again: bytes on the way in are bounded too."""
        try:
            async with asyncio.timeout(_CONGESTED_WAIT_S):
                # nats-py has no event for this; the wait is rare and short.
                while self.congested:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError as error:
            raise BusDown("the server does not take our data") from error

    def _refuse_size(self, subject: str, size: int) -> None:
        count(names.BUS_TOO_LARGE, template=template(subject))
        raise TooLarge(f"{size} bytes with headers; the server takes {self.client.max_payload}")

    def _check_denials(self, subjects: Iterable[str], denials_before: int) -> None:
        new = self._denials - denials_before
        if not new:
            return
        for subject in subjects:
            quoted = f'subscription to "{subject.lower()}"'
            if any(quoted in text for text in self.permission_errors[-new:]):
                raise Forbidden(f"the server denies a subscription to {subject}")

    async def _on_error(self, error: Exception) -> None:
        """Sort what nats-py reports on the side. While opening, a refused key ends the start."""
        text = str(error)
        if "permissions violation" in text:
            self._note_denial(text)
        elif self._opening and "authorization" in text.lower():
            raise BusNotStarted("the NATS server refuses our credentials") from error
        elif isinstance(error, errors.Error | OSError | TimeoutError):
            count(names.BUS_ERRORS, error_type=type(error).__name__)
            if not self._opening:
                get_logger().debug("bus connection error", error=text)
        else:
            count(names.BUS_ERRORS, error_type=type(error).__name__)
            get_logger().error("bus callback failed", exc_info=error)

    def _note_denial(self, text: str) -> None:
        operation = "publish" if " for publish " in text else "subscription"
        count(names.BUS_PERMISSION_ERRORS, operation=operation)
        self._denials += 1
        self.permission_errors.append(text)
        del self.permission_errors[:-_KEPT_PERMISSION_ERRORS]
        get_logger().error("bus permission denied", error=text)

    async def _on_disconnected(self) -> None:
        dropped = self.client.drop_unsent()
        # nats-py says this once for each attempt that came half way.
        if self._closing or self._lost:
            return
        self._lost = True
        self._down_since = self._down_since or self._clock.monotonic()
        count(names.BUS_DISCONNECTS)
        get_logger().warning("bus connection lost", dropped_commands=dropped)

    async def _on_reconnected(self) -> None:
        since, self._down_since = self._down_since, None
        down_s = 0.0 if since is None else round(self._clock.monotonic() - since, 3)
        self._lost = False
        self._attempts = 0
        count(names.BUS_RECONNECTS)
        get_logger().info("bus connection back", down_s=down_s)
        if self.client.max_payload < self.settings.min_max_payload:
            self.warnings = (f"max_payload is {self.client.max_payload} bytes",)
            get_logger().error("bus takes only small messages", limit=self.client.max_payload)

    async def _on_closed(self) -> None:
        if not self._closing:
            get_logger().error("bus connection closed for good")

    async def _on_lame_duck(self) -> None:
        get_logger().warning("bus server is going away", servers=len(self.client.servers))
        if len(self.client.servers) > 1:
            # Leave early and in order; a sole server serves us until it goes.
            await self.client.force_reconnect()
