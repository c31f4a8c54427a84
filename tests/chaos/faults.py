"""The fault script: drawn from a seed, carried out on a running stack, and noted."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.load import now_ms
from tests.chaos.world.stack import NATS, ON_TCP, WORKERS, ChaosStack

__all__ = ["KINDS", "Injector", "Strike"]

_AGAIN_S = 60.0
_LOOK_S = 0.05
_MOST_AT_ONCE = 3
_MOVING_S = 3.0
"""How long a transfer is waited for."""


@dataclass(slots=True)
class Strike:
    """One fault that was carried out."""

    kind: str
    target: str
    """A slot, or `all`."""
    from_ms: float
    """Unix time."""
    until_ms: float
    """When its cause had ended; for a kill, when the slot was ready again."""
    pid: int = 0
    recovered: bool = True
    """For a kill: whether the slot became ready again in time."""

    @property
    def is_kill(self) -> bool:
        """Whether a process of the stack was ended."""
        return self.kind.startswith("kill")

    def overlaps(self, from_ms: float, until_ms: float) -> bool:
        """Whether it was going on at any moment of an interval."""
        return self.from_ms <= until_ms and self.until_ms >= from_ms

    def overlap_ms(self, from_ms: float, until_ms: float) -> float:
        """How much of an interval it took."""
        return max(0.0, min(self.until_ms, until_ms) - max(self.from_ms, from_ms))


_HOSTS = ("engine host", "transfer")
"""What is done to an engine host and not to its service."""

KINDS: dict[str, int] = {
    "kill gateway": 3,
    "kill router": 3,
    "kill prefill": 4,
    "kill decode": 4,
    "kill cleanup": 2,
    "kill engine host": 6,
    "kill nats": 3,
    "stop service": 7,
    "stop engine host": 4,
    "stop nats": 2,
    "stop transfer": 4,
    "sever pair": 6,
    "cut": 5,
    "hold": 4,
    "delay": 5,
    "flap": 4,
    "blackout": 2,
}
"""Kinds of faults and how often each is drawn, in relation to the others."""


class Injector:
    """Draws faults and carries them out, at most three at a time.

    Args:
        stack: the victim.
        rng: which, when and how long.
        gap_s: mean time between two faults.
    """

    def __init__(self, stack: ChaosStack, rng: random.Random, *, gap_s: float) -> None:
        self.strikes: list[Strike] = []
        self.skipped: Counter[str] = Counter()
        """Faults whose target did not run just then."""
        self._stack = stack
        self._rng = rng
        self._gap_s = gap_s
        self._hurt: set[str] = set()
        self._bag: list[str] = []

    async def run(self, seconds: float) -> None:
        """Be active for some time; return when the last fault has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._rng.uniform(0.3, 1.7) * self._gap_s)
                if loop.time() >= until:
                    return
                if len(self._hurt) < _MOST_AT_ONCE:
                    group.create_task(self._strike(self._draw()))

    def _draw(self) -> str:
        # A shuffled bag: each kind comes in its share even in a short run.
        if not self._bag:
            self._bag = [kind for kind, weight in KINDS.items() for _ in range(weight)]
            first = list(KINDS)
            self._rng.shuffle(self._bag)
            self._rng.shuffle(first)
            if not self.strikes:
                self._bag += first
        return self._bag.pop()

    async def _strike(self, kind: str) -> None:
        action, _, what = kind.partition(" ")
        target = self._target(action, what)
        if target is None:
            self.skipped[kind] += 1
            return
        acts: dict[str, Callable[[str, str], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "blackout": self._blackout,
            "sever": self._sever,
        }
        self._hurt.add(target)
        try:
            await acts.get(action, self._part)(kind, target)
        finally:
            self._hurt.discard(target)

    def _target(self, action: str, what: str) -> str | None:
        services = [slot.name for slot in self._stack.record.slots if slot.name != NATS]
        if action == "blackout":
            found = ["all"]
        elif what == "nats":
            found = [NATS]
        elif action == "sever":
            found = [ON_TCP]
        elif what in _HOSTS:
            found = [name for name in services if name.startswith(WORKERS)]
        elif action == "kill":
            found = [name for name in services if name.startswith(what)]
        else:
            found = services
        free = [name for name in found if name not in self._hurt]
        return self._rng.choice(free) if free else None

    def _note(self, kind: str, target: str, pid: int = 0, from_ms: float | None = None) -> Strike:
        began_ms = now_ms() if from_ms is None else from_ms
        strike = Strike(kind, target, began_ms, float("inf"), pid)
        self.strikes.append(strike)
        return strike

    # The faults

    async def _kill(self, kind: str, target: str) -> None:
        host = kind == "kill engine host"
        before = self._stack.slot(target).pid
        send = self._stack.signal_host if host else self._stack.signal
        # Stamped before: on busy cores its victim may tell of it first.
        from_ms = now_ms()
        pid = send(target, signal.SIGKILL)
        if pid is None or before is None:
            self.skipped[kind] += 1
            return
        strike = self._note(kind, target, pid, from_ms)
        if host:
            # The service stays; its heartbeats tell of the next engine.
            await self._until_host_is_new(target, pid)
        else:
            strike.recovered = await self._stack.ready_again(target, pid, _AGAIN_S)
        strike.until_ms = now_ms()

    async def _until_host_is_new(self, target: str, pid: int) -> None:
        for _ in range(200):
            if self._stack.host(target) not in {None, pid}:
                return
            await asyncio.sleep(0.05)

    async def _stop(self, kind: str, target: str) -> None:
        host = kind.endswith(_HOSTS)
        if kind == "stop transfer" and not await self._met(target):
            self.skipped[kind] += 1
            return
        send = self._stack.signal_host if host else self._stack.signal
        pid = send(target, signal.SIGSTOP)
        if pid is None:
            self.skipped[kind] += 1
            return
        strike = self._note(kind, target, pid)
        await asyncio.sleep(self._rng.uniform(1, 10))
        send(target, signal.SIGCONT)
        strike.until_ms = now_ms()

    async def _sever(self, kind: str, target: str) -> None:
        """Reset what connects an engine with one of prefill while a room of it is open."""
        peers = [slot.name for slot in self._stack.record.slots if slot.role == "prefill"]
        self._rng.shuffle(peers)
        met = await self._met(target)
        strike = Strike(kind, target, now_ms(), float("inf"))
        # One pair: those of the other peer must go on.
        if met and any(self._stack.sever(target, peer) for peer in peers):
            strike.until_ms = now_ms()
            self.strikes.append(strike)
        else:
            self.skipped[kind] += 1

    async def _met(self, target: str) -> bool:
        """Wait for a transfer of a worker; return whether there is one."""
        try:
            async with asyncio.timeout(_MOVING_S):
                while not await self._stack.is_moving(target):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return False
        return True

    async def _part(self, kind: str, target: str) -> None:
        proxy = self._stack.proxies[target]
        strike = self._note(kind, target)
        seconds = self._rng.choice((self._rng.uniform(0.2, 2), self._rng.uniform(2, 10)))
        match kind:
            case "cut":
                proxy.cut()
            case "hold":
                proxy.hold()
            case "delay":
                proxy.slow(self._rng.uniform(0.1, 2.0))
            case _:
                proxy.flap()
                seconds = 0.0
        await asyncio.sleep(seconds)
        proxy.heal()
        strike.until_ms = now_ms()

    async def _blackout(self, kind: str, target: str) -> None:
        strike = self._note(kind, target)
        for proxy in self._stack.proxies.values():
            proxy.cut()
        await asyncio.sleep(self._rng.choice((self._rng.uniform(0.1, 2), self._rng.uniform(2, 12))))
        for proxy in self._stack.proxies.values():
            proxy.heal()
        strike.until_ms = now_ms()
