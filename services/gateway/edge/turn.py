"""What is written to clients within one turn of the loop leaves together."""

from __future__ import annotations

import asyncio

__all__ = ["Outbound", "Turn"]

_TURN_BYTES = 65_536
"""What a connection may gather before it leaves ahead of the turn's end."""


class Turn:
    """What is written to all connections within one turn of the loop; it leaves at its end.

    A step of an engine brings a token to each stream. Written one behind the other, they cost a
    fraction of what they cost when each is written between two others' work: the kernel's path
    stays warm, and a client of several streams is woken once.
    """

    def __init__(self) -> None:
        self.waiting: list[Outbound] = []
        """Connections that write at the end of this turn; the first one asks for that."""

    def ask(self) -> None:
        """Have those write that will wait by the end of this turn."""
        asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        waiting, self.waiting = self.waiting, []
        for outbound in waiting:
            outbound.leave()


class Outbound:
    """The transport of one connection as answers see it: a head and its first event go together."""

    __slots__ = ("_bytes", "_parts", "_transport", "_turn")

    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        """Write at the end of this turn, or at once where there is much."""
        if not self._parts:
            waiting = self._turn.waiting
            if not waiting:
                self._turn.ask()
            waiting.append(self)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > _TURN_BYTES:
            self.leave()

    def leave(self) -> None:
        """Write what was gathered; what a lost connection has not taken is dropped."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def is_closing(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Write what was gathered and close."""
        self.leave()
        self._transport.close()
