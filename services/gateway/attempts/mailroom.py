"""The one subscription of a gateway for all its answers, sorted by nonce."""

from __future__ import annotations

from collections.abc import Callable

from libs.bus.api import Bus, Subscription
from libs.clock.api import Clock
from libs.telemetry import count, names
from proto import subjects
from proto.gateway import StreamBatch, StreamMessage
from proto.ids import Incarnation, InstanceId, Nonce

__all__ = ["Mailroom"]

Deliver = Callable[[StreamMessage, float], None]
"""Takes a message, and the monotonic time at which it came."""


class Mailroom:
    """Hands stream messages to the attempt that they are for.

    One wildcard subscription, made before any attempt, leaves no race between a subscription and
    its first message.
    """

    def __init__(
        self, *, bus: Bus, clock: Clock, gateway: InstanceId, incarnation: Incarnation
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._subject = subjects.tokens_of_gateway(gateway, incarnation)
        self._boxes: dict[str, Deliver] = {}
        self._subscription: Subscription | None = None

    def __len__(self) -> int:
        return len(self._boxes)

    async def start(self) -> None:
        """Begin to receive."""
        self._subscription = await self._bus.subscribe(
            self._subject, StreamMessage | StreamBatch, self._receive
        )

    async def close(self) -> None:
        """Stop receiving."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def open(self, nonce: Nonce, deliver: Deliver) -> None:
        """Hand messages for `nonce` to `deliver`."""
        self._boxes[nonce] = deliver

    def shut(self, nonce: Nonce) -> None:
        """Drop messages for `nonce` from now on."""
        self._boxes.pop(nonce, None)

    def _receive(self, subject: str, message: StreamMessage | StreamBatch) -> None:
        if isinstance(message, StreamBatch):
            items = message.items
        else:
            items = ((subject.rpartition(".")[2], message),)
        boxes, now_s = self._boxes, self._clock.monotonic()
        for nonce, part in items:
            deliver = boxes.get(nonce)
            if deliver is None:
                count(names.GATEWAY_STALE)
            else:
                deliver(part, now_s)
