"""What happened in a world: the last events to read, a hash of all of them, and the violations."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Trace", "Violation"]

_ALWAYS = frozenset({"fault", "process", "engine", "link", "remark", "VIOLATION"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    name: str
    """The invariant: `I1` ... `I12`, or `crash`, `deadlock`, ... for faults of the code itself."""
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.name} at {self.at_s:.3f} s: {self.text}"


class Trace:
    """Collects the events of one world.

    Args:
        loop: the source of virtual time.
        keep: how many of the last events stay readable.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, keep: int = 600) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=12)
        self.last: deque[tuple[float, str, str]] = deque(maxlen=keep)
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.remarks: list[Violation] = []
        """What falls short of the protocol and is not promised yet."""
        self.closed = False
        """The world is being thrown away: nothing counts any more."""

    def note(self, kind: str, text: str, *, keep: bool = True) -> None:
        """Record an event; without `keep` it counts and is hashed, and nobody reads it."""
        now = self._loop.time()
        self.counts[kind] += 1
        self._hash.update(f"{now!r}{kind}{text}".encode())
        if keep:
            self.last.append((now, kind, text))

    def violate(self, name: str, text: str) -> None:
        """Record a broken promise."""
        if self.closed:
            return
        self.note("VIOLATION", f"{name} {text}")
        self.violations.append(Violation(name, self._loop.time(), text))

    def remark(self, name: str, text: str) -> None:
        """Record what falls short of the protocol and is not promised yet."""
        self.note("remark", f"{name} {text}")
        self.remarks.append(Violation(name, self._loop.time(), text))

    @property
    def digest(self) -> str:
        """The hash of everything so far; equal for equal worlds."""
        return self._hash.copy().hexdigest()

    def readable(self, about: Collection[str] = (), limit: int = 250) -> str:
        """Return the last events as lines: faults, and those that contain one of `about`."""
        lines = [
            f"{at:10.4f}  {kind:<10} {text}"
            for at, kind, text in self.last
            if kind in _ALWAYS or not about or any(word in text for word in about)
        ]
        return "\n".join(lines[-limit:])
