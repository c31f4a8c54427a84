"""A hostile client: hears control messages, and sends copies of them again, soon or late."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.lifecycle import Tasks
from proto import subjects

__all__ = ["Hostile", "open_hostile"]

_SUBJECTS = (
    f"{subjects.PREFIX}.router.*",
    f"{subjects.PREFIX}.prefill.>",
    f"{subjects.PREFIX}.decode.>",
    f"{subjects.PREFIX}.gateway.>",
    f"{subjects.PREFIX}.tokens.>",
    subjects.ALL_CANCELS,
    subjects.ALL_HEARTBEATS,
)
_SHARE = {"tokens": 0.02, "heartbeat": 0.05}
"""How much of the frequent kinds is sent again."""
_OTHERS = 0.35
_HARMFUL = frozenset({"drain"})
"""A copy of an operator's order is an order: nobody can tell it from the first."""
_MOST_WAITING = 2_000


class Hostile:
    """Sends copies.

    Args:
        client: a connection that does not hear what it sends itself.
        rng: which messages, and how late.
    """

    def __init__(self, client: Client, rng: random.Random, tasks: Tasks) -> None:
        self.sent: Counter[str] = Counter()
        """Copies, by verb and lateness."""
        self._client = client
        self._rng = rng
        self._tasks = tasks
        self._waiting = 0
        self._stopped = False
        self._inbox = client.new_inbox()

    async def listen(self) -> None:
        """Listen in bursts, for as long as it is not cancelled.

        While it listens, requests to the dead are not answered by "nobody is there" but by silence.
        """
        while True:
            await asyncio.sleep(self._rng.uniform(1, 8))
            with suppress(nats.errors.Error):  # nats-server is away just now
                heard = [await self._client.subscribe(s, cb=self._hear) for s in _SUBJECTS]
                await asyncio.sleep(self._rng.uniform(1, 6))
                for subscription in heard:
                    await subscription.unsubscribe()

    def stop(self) -> None:
        """Send nothing any more."""
        self._stopped = True

    async def _hear(self, msg: Msg) -> None:
        parts = msg.subject.split(".")
        noun, verb = parts[2], parts[-1]
        kind = verb if noun in {"router", "prefill", "decode", "gateway"} else noun
        share = _SHARE.get(kind, _OTHERS)
        if self._stopped or kind in _HARMFUL or self._rng.random() >= share:
            return
        if self._waiting >= _MOST_WAITING:
            return
        lateness = self._rng.choice(("duplicate", "reordered", "stale"))
        late_s = {
            "duplicate": 0.0,
            "reordered": self._rng.uniform(0.01, 0.5),
            "stale": self._rng.uniform(1.0, 20.0),
        }[lateness]
        self._waiting += 1
        self._tasks.spawn(self._send(msg, late_s, f"{kind} {lateness}"), name="copy")

    async def _send(self, msg: Msg, late_s: float, name: str) -> None:
        try:
            await asyncio.sleep(late_s)
            if self._stopped or not self._client.is_connected:
                return
            # Where an answer is asked for, it must not be taken for that to the first copy.
            await self._client.publish(msg.subject, msg.data, self._inbox if msg.reply else "")
            self.sent[name] += 1
        except nats.errors.Error:
            pass  # nats-server is away just now
        finally:
            self._waiting -= 1


@asynccontextmanager
async def open_hostile(url: str, rng: random.Random) -> AsyncIterator[Hostile]:
    """Be hostile for the length of the context."""

    async def ignore(_error: Exception) -> None:
        """Outages are a part of the run."""

    client = await nats.connect(
        url,
        name="chaos-hostile",
        no_echo=True,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.2,
        error_cb=ignore,
    )
    async with Tasks() as tasks:
        hostile = Hostile(client, rng, tasks)
        tasks.spawn(hostile.listen(), name="listen")
        try:
            yield hostile
        finally:
            hostile.stop()
            await client.close()
