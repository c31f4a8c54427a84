"""The wire between processes: one server, one link a process, and everything that goes wrong.

Messages between two processes keep their order, unless a fault delays or repeats one of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from proto.base import Message, decode
from proto.control import Abort, Cancel
from proto.events import Event
from tests.sim.kernel.loop import Domain, SimLoop, owned_context
from tests.sim.kernel.trace import Trace

__all__ = [
    "NO_LOSS",
    "Deliver",
    "Link",
    "LinkState",
    "Loss",
    "NetworkHooks",
    "SimNetwork",
    "Subscriber",
    "matches",
]

Deliver = Callable[[str, bytes, "ReplyPath | None"], None]


class LinkState(Enum):
    """How a process stands with the server."""

    UP = "up"
    HALF = "half"
    """Cut, and neither side has noticed: what is sent vanishes."""
    DOWN = "down"
    """The process knows that it has no connection."""


@dataclass(slots=True)
class Loss:
    """The chances that something happens to one message, while faults are on."""

    drop: float = 0.0
    duplicate: float = 0.0
    stale: float = 0.0
    """To arrive seconds late, after younger messages."""
    stale_s: tuple[float, float] = (0.5, 8.0)
    delay_s: float = 0.0
    """Mean of an extra delay that keeps the order."""
    only: str = ""
    """Hits only subjects that contain this."""


NO_LOSS = Loss()


@dataclass(slots=True, eq=False)
class Subscriber:
    """One interest of one process, as the server knows it."""

    link: Link
    pattern: str
    queue: str | None
    deliver: Deliver
    active: bool = True
    prefix: str = ""
    """The part of the pattern in front of its first wildcard."""

    def __post_init__(self) -> None:
        self.prefix = self.pattern.partition("*")[0].partition(">")[0]


@dataclass(slots=True, eq=False)
class Link:
    """The connection of one process to the server."""

    name: str
    domain: Domain
    state: LinkState = LinkState.UP
    known: bool = True
    """Whether the server still counts this link's subscriptions."""
    cut: bool = False
    lost_at: float = 0.0
    parted_s: float = -1e9
    """When it last was anything but up."""
    epoch: int = 0
    """Number of the connection; what was on its way to an older one is gone."""
    cuts: int = 0
    backlog: list[Callable[[], object]] | None = None
    """What waits in socket buffers while nobody has noticed a cut; None if it is lost."""
    subscribers: list[Subscriber] = field(default_factory=list)


def _nothing(*_args: Any) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class NetworkHooks:
    """Who is told of messages, for the checks."""

    said: Callable[[Link, str, Message], None] = _nothing
    """A process sends a message."""
    ending: Callable[[Link, Abort | Cancel], None] = _nothing
    """A process takes in an order to stop an attempt."""
    told: Callable[[Link, Event], None] = _nothing
    """A process tells an event."""


@dataclass(slots=True, eq=False)
class ReplyPath:
    """Where the answer to one request goes."""

    link: Link
    resolve: Callable[[bytes, bool], None]


class SimNetwork:
    """The server and its links.

    Args:
        loop: virtual time.
        rng: the source of chance.
        trace: where deliveries are recorded.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.loss = NO_LOSS
        self.up = True
        self.links: dict[str, Link] = {}
        self.events: list[Event] = []
        self.hooks = NetworkHooks()
        self.context = owned_context(None)
        self._seen_events: set[str] = set()
        self._decoded: tuple[bytes, Any, Any] = (b"", None, None)
        self._pairs: dict[tuple[Link, Link], _Pair] = {}
        self._routes: dict[str, tuple[list[Subscriber], list[list[Subscriber]]]] = {}

    def join(self, name: str, domain: Domain) -> Link:
        """Connect a process."""
        link = Link(name, domain)
        self.links[name] = link
        if not self.up:
            self._lose(link)
        return link

    def leave(self, link: Link, *, linger_s: float = 0.0) -> None:
        """Remove a dead process; the server forgets it at once or when it notices."""
        if linger_s > 0:
            self.later(linger_s, self._forget, link)
        else:
            self._forget(link)

    def subscribe(
        self, link: Link, pattern: str, queue: str | None, deliver: Deliver
    ) -> Subscriber:
        """Add an interest."""
        subscriber = Subscriber(link, pattern, queue, deliver)
        link.subscribers.append(subscriber)
        self._routes.clear()
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove an interest."""
        subscriber.active = False
        if subscriber in subscriber.link.subscribers:
            subscriber.link.subscribers.remove(subscriber)
        self._routes.clear()

    def decoded(self, data: bytes, kind: Any) -> Any:
        """Return a message; the many who hear one message share it, as it never changes."""
        last_data, last_kind, message = self._decoded
        if last_data is not data or last_kind is not kind:
            message = decode(data, kind)
            self._decoded = (data, kind, message)
        return message

    def later(
        self, seconds: float, work: Callable[..., None], *args: object
    ) -> asyncio.TimerHandle:
        """Call `work` in virtual time, on behalf of no process."""
        return self.loop.call_later(seconds, work, *args, context=self.context)

    def latency(self) -> float:
        """Return the time from one process to another, in seconds."""
        return 0.0002 + self.rng.expovariate(1 / 0.0006)

    def send(self, sender: Link, subject: str, data: bytes, reply: ReplyPath | None = None) -> bool:
        """Bring a message to all who listen; return False if nobody does."""
        if sender.state is LinkState.HALF:
            if sender.backlog is not None:
                sender.backlog.append(partial(self.send, sender, subject, data, reply))
            return True
        plain, groups = self._route(subject)
        targets = [target for target in plain if target.link.known]
        for members in groups:
            known = [member for member in members if member.link.known]
            if known:
                targets.append(known[int(self.rng.random() * len(known))])
        if ".heartbeat." in subject and not self._lossy(subject):
            self._fan_out(sender, targets, subject, data)
        else:
            for target in targets:
                self._deliver(sender, target.link, _Item(subject, data, reply, target))
        return bool(targets)

    def answer(
        self, sender: Link, path: ReplyPath, subject: str, data: bytes, *, good: bool
    ) -> None:
        """Bring the answer of a request back."""
        if sender.state is LinkState.UP:
            self._deliver(sender, path.link, _Item(subject, data, path, None, good))
        elif sender.backlog is not None:
            sender.backlog.append(partial(self.answer, sender, path, subject, data, good=good))

    def cut(self, link: Link, *, notice_s: float, server_s: float, hold: bool = False) -> None:
        """Cut a process off; it notices after `notice_s`, the server after `server_s`.

        With `hold`, what is sent until then arrives late if the cut ends before it is noticed.
        """
        link.cut = True
        if link.state is LinkState.UP:
            self._halve(link, hold=hold)
            self.later(notice_s, self._notice, link, link.cuts)
            self.later(server_s, self._server_notices, link, link.cuts)

    def sever(self, link: Link) -> None:
        """Close a connection from the server's side, as it does with whoever does not read."""
        if link.state is LinkState.UP:
            self._lose(link)

    def rejoin(self, link: Link) -> None:
        """Let a severed process connect again."""
        if self.up and not link.cut and link.state is LinkState.DOWN:
            self._reconnect(link)

    def mend(self, link: Link) -> None:
        """End the cut of a process."""
        link.cut = False
        if not self.up:
            return
        if link.state is LinkState.HALF:
            self._join_again(link)
        elif link.state is LinkState.DOWN:
            self._reconnect(link)

    def stop_server(self, *, notice_s: float = 0.0) -> None:
        """Take the server away; clients notice at once if it died, later if it hangs."""
        self.up = False
        for link in self.links.values():
            if link.state is LinkState.UP and notice_s > 0:
                self._halve(link, hold=True)
                self.later(notice_s * self.rng.random(), self._notice, link, link.cuts)
            elif link.state is not LinkState.DOWN:
                self._lose(link)

    def start_server(self) -> None:
        """Bring the server back; each process reconnects in its own time."""
        self.up = True
        for link in self.links.values():
            if link.cut:
                continue
            if link.state is LinkState.DOWN:
                self._reconnect(link)
            elif link.state is LinkState.HALF:
                self._join_again(link)

    def record_event(self, link: Link, event: Event) -> None:
        """Keep an event once, as the stream does."""
        key = event.dedup_key
        if event.rid is None:
            # Without a request there is nothing but the time to tell two facts apart.
            key = f"{key}:{event.at_ms}"
        if key in self._seen_events:
            return
        self._seen_events.add(key)
        self.events.append(event)
        self.trace.note("event", f"{link.name} {event.kind} {event.rid} {event.attempt}")

    def _route(self, subject: str) -> tuple[list[Subscriber], list[list[Subscriber]]]:
        route = self._routes.get(subject)
        if route is None:
            plain: list[Subscriber] = []
            groups: dict[tuple[str, str], list[Subscriber]] = {}
            for link in self.links.values():
                for subscriber in link.subscribers:
                    if not subject.startswith(subscriber.prefix):
                        continue
                    if not matches(subscriber.pattern, subject):
                        continue
                    if subscriber.queue is None:
                        plain.append(subscriber)
                    else:
                        key = (subscriber.pattern, subscriber.queue)
                        groups.setdefault(key, []).append(subscriber)
            route = self._routes[subject] = (plain, list(groups.values()))
        return route

    def _lossy(self, subject: str) -> bool:
        return self.loss is not NO_LOSS and self.loss.only in subject

    def _fan_out(self, sender: Link, targets: list[Subscriber], subject: str, data: bytes) -> None:
        """Bring one message to many at one moment: cheaper, and just as much in order."""
        when = self.loop.time() + self.latency()
        arrivals: list[tuple[Link, _Pair]] = []
        for target in targets:
            link = target.link
            pair = self._pair(sender, link)
            when = max(when, pair.last)
            pair.queue.append(_Item(subject, data, None, target, epoch=link.epoch))
            arrivals.append((link, pair))
        for _, pair in arrivals:
            pair.last = when
        self.loop.call_at(when, self._arrive_all, arrivals, context=self.context)

    def _arrive_all(self, arrivals: list[tuple[Link, _Pair]]) -> None:
        for link, pair in arrivals:
            self._arrive(link, pair.queue.popleft())

    def _pair(self, sender: Link, target: Link) -> _Pair:
        pair = self._pairs.get((sender, target))
        if pair is None:
            pair = self._pairs[(sender, target)] = _Pair()
        return pair

    def _deliver(self, sender: Link, target: Link, item: _Item) -> None:
        loss = self.loss if self.loss.only in item.subject else NO_LOSS
        item.epoch = target.epoch
        if loss.drop and self.rng.random() < loss.drop:
            self.trace.note("drop", f"{sender.name}>{target.name} {item.subject}")
            return
        if loss.stale and self.rng.random() < loss.stale:
            self.trace.note("stale", f"{sender.name}>{target.name} {item.subject}")
            self.later(self.rng.uniform(*loss.stale_s), self._arrive, target, item)
            return
        if loss.duplicate and self.rng.random() < loss.duplicate:
            self.trace.note("duplicate", f"{sender.name}>{target.name} {item.subject}")
            self.later(10 ** self.rng.uniform(-3.0, 0.9), self._arrive, target, item)
        delay = self.latency()
        if loss.delay_s:
            delay += self.rng.expovariate(1 / loss.delay_s)
        pair = self._pair(sender, target)
        when = max(self.loop.time() + delay, pair.last)
        pair.last = when
        pair.queue.append(item)
        self.loop.call_at(when, self._arrive_next, target, pair, context=self.context)

    def _arrive_next(self, target: Link, pair: _Pair) -> None:
        self._arrive(target, pair.queue.popleft())

    def _arrive(self, target: Link, item: _Item) -> None:
        if target.state is LinkState.HALF and target.backlog is not None:
            target.backlog.append(partial(self._arrive, target, item))
            return
        if target.state is not LinkState.UP or item.epoch != target.epoch:
            return
        if not target.domain.alive:
            return
        if item.subscriber is None:
            assert item.reply is not None
            self.trace.note("reply", f"{target.name} {item.subject}")
            item.reply.resolve(item.data, item.good)
        elif item.subscriber.active:
            self.trace.note(
                "message",
                f"{target.name} {item.subject} {len(item.data)}",
                keep=".heartbeat." not in item.subject,
            )
            item.subscriber.deliver(item.subject, item.data, item.reply)

    def _halve(self, link: Link, *, hold: bool) -> None:
        link.parted_s = self.loop.time()
        link.state = LinkState.HALF
        link.cuts += 1
        link.backlog = [] if hold else None

    def _join_again(self, link: Link) -> None:
        link.state = LinkState.UP
        link.parted_s = self.loop.time()
        link.known = True
        link.cuts += 1
        backlog, link.backlog = link.backlog or [], None
        for work in backlog:
            work()

    def _notice(self, link: Link, cuts: int) -> None:
        if link.state is LinkState.HALF and link.cuts == cuts:
            self._lose(link)

    def _server_notices(self, link: Link, cuts: int) -> None:
        if link.cuts == cuts and link.cut:
            link.known = False

    def _lose(self, link: Link) -> None:
        link.lost_at = self.loop.time()
        link.state = LinkState.DOWN
        link.known = False
        link.backlog = None
        link.epoch += 1
        self.trace.note("link", f"{link.name} down")

    def _reconnect(self, link: Link) -> None:
        self.later(self.rng.uniform(0.002, 0.115), self._connected, link, link.epoch)

    def _connected(self, link: Link, epoch: int) -> None:
        if self.up and not link.cut and link.state is LinkState.DOWN and link.epoch == epoch:
            link.state = LinkState.UP
            link.parted_s = self.loop.time()
            link.known = True
            self.trace.note("link", f"{link.name} up")

    def _forget(self, link: Link) -> None:
        link.known = False
        self.links.pop(link.name, None)
        self._routes.clear()


@dataclass(slots=True, eq=False)
class _Item:
    subject: str
    data: bytes
    reply: ReplyPath | None
    subscriber: Subscriber | None
    good: bool = True
    epoch: int = 0


@dataclass(slots=True, eq=False)
class _Pair:
    queue: deque[_Item] = field(default_factory=deque)
    last: float = 0.0


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject falls under a NATS pattern."""
    if pattern == subject:
        return True
    if "*" not in pattern and ">" not in pattern:
        return False
    wanted = pattern.split(".")
    given = subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or (token not in ("*", given[place])):
            return False
    return len(given) == len(wanted)
