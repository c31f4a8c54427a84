"""Control messages on a port: a ring of posted receives, and sends that nobody waits for."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from libs.transfer.api import PlaneStats
from libs.transfer.ucx.port import Line, Operation, Port, TransportError
from libs.transfer.wire import CONTROL_MAX, CONTROL_TAG, Control, pack, unpack
from proto.base import ProtocolError

__all__ = ["Channel"]

Bytes = npt.NDArray[np.uint8]

_DEPTH = 16
"""Receives posted; more messages than that wait inside UCX until one is posted again."""


class Channel:
    """Control messages in both directions through one port."""

    def __init__(self, port: Port, tag: int, mask: int, stats: PlaneStats) -> None:
        self._stats = stats
        self._port = port
        self._tag = tag
        self._mask = mask
        self._ring: deque[tuple[Bytes, Operation]] = deque()
        self._heard: list[Bytes] = []
        """Buffers whose messages have been returned."""
        self._sends: deque[Operation] = deque()
        for _ in range(_DEPTH):
            self._post(np.empty(CONTROL_MAX, np.uint8))

    @property
    def flushed(self) -> bool:
        """Whether all sends have left."""
        return not self._sends

    def send(self, line: Line, message: Control) -> None:
        """Send without waiting.

        Raises:
            TransportError: the peer is lost.
        """
        data = np.frombuffer(bytearray(pack(message)), np.uint8)
        self._sends.append(self._port.send(line, data, CONTROL_TAG))

    def poll(self) -> list[Control]:
        """Return what has arrived, in order; call it until there is nothing.

        What has arrived is to be answered first: receives are posted again by the next call.

        Raises:
            TransportError: the peer is lost.
        """
        while self._heard:
            self._post(self._heard.pop())
        while self._sends and self._port.done(self._sends[0]):
            self._sends.popleft()
        messages: list[Control] = []
        while self._arrived():
            buffer, _ = self._ring.popleft()
            try:
                messages.append(unpack(buffer.data))
            except ProtocolError:
                self._stats.malformed_messages += 1
            self._heard.append(buffer)
        return messages

    def _arrived(self) -> bool:
        try:
            return bool(self._ring) and self._port.done(self._ring[0][1])
        except TransportError:
            # Only a message longer than its receive fails a receive; it is dropped.
            self._stats.malformed_messages += 1
            buffer, _ = self._ring.popleft()
            self._post(buffer)
            return self._arrived()

    def _post(self, buffer: Bytes) -> None:
        self._ring.append((buffer, self._port.receive(buffer, self._tag, self._mask)))
