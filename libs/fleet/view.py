"""The fleet as one process sees it: pure soft state, rebuilt from heartbeats within a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from proto.ids import Incarnation, InstanceId
from proto.workers import Heartbeat, Role, WorkerRef, WorkerState

__all__ = ["DEAD_S", "FORGET_S", "SUSPECT_S", "Fleet", "Health", "Member"]

SUSPECT_S = 2.5
"""Silence after which a process gets no new work."""

DEAD_S = 5.0
"""Silence after which a process counts as gone."""

FORGET_S = 60.0
"""Silence after which a process is no longer listed."""


class Health(StrEnum):
    """What the silence of an incarnation means."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(slots=True)
class Member:
    """One incarnation and the last word heard of it."""

    heartbeat: Heartbeat
    heard_s: float
    shunned: bool = False
    """A request to it failed since its last heartbeat: it gets no new work until the next."""

    def health(self, now_s: float) -> Health:
        """Return what its silence means at monotonic time `now_s`."""
        silence = now_s - self.heard_s
        if silence >= DEAD_S:
            return Health.DEAD
        return Health.SUSPECT if silence >= SUSPECT_S else Health.ALIVE

    def usable(self, now_s: float) -> bool:
        """Return whether it may be given work."""
        return (
            self.heartbeat.state is WorkerState.READY
            and not self.shunned
            and self.health(now_s) is Health.ALIVE
        )


class Fleet:
    """All incarnations heard of in the last minute."""

    def __init__(self) -> None:
        self.version = 0
        """Another number whenever a member comes, goes, says something new or is shunned."""
        self._members: dict[Incarnation, Member] = {}
        self._newest: dict[InstanceId, Incarnation] = {}
        self._gone: dict[Incarnation, float] = {}
        self._heard_s = float("-inf")
        self._listening_since_s = float("inf")

    def hear(self, heartbeat: Heartbeat, now_s: float) -> Member | None:
        """Take in a heartbeat; return the member, or None if it is stale.

        A heartbeat that is older than the last one, or from a life of its process that is over, is
        a late copy and says nothing.
        """
        if now_s - self._heard_s >= SUSPECT_S:
            self._listening_since_s = now_s
        self._heard_s = now_s
        if self._is_over(heartbeat, now_s):
            return None
        known = self._members.get(heartbeat.incarnation)
        if known is not None and heartbeat.sequence <= known.heartbeat.sequence:
            return None
        before = self._newest.get(heartbeat.instance)
        if before is not None and before != heartbeat.incarnation:
            self._members.pop(before, None)
            self._gone[before] = now_s
        self._gone.pop(heartbeat.incarnation, None)
        member = Member(heartbeat, now_s)
        self._members[heartbeat.incarnation] = member
        self.version += 1
        self._newest[heartbeat.instance] = heartbeat.incarnation
        return member

    def _is_over(self, heartbeat: Heartbeat, now_s: float) -> bool:
        """Return whether the incarnation that a heartbeat comes from has a successor.

        Of two incarnations the one that has sent last lives. Who has just begun to listen may hear
        a late copy of the dead one after the living one.
        """
        buried = heartbeat.incarnation in self._gone
        newest = self._newest.get(heartbeat.instance)
        member = self._members.get(newest) if newest is not None else None
        if member is None or newest == heartbeat.incarnation:
            return buried
        if heartbeat.sent_ms > member.heartbeat.sent_ms:
            return False
        if heartbeat.sent_ms == member.heartbeat.sent_ms:
            return buried
        # A clock that was set back must not keep a successor out for long.
        return buried or member.health(now_s) is not Health.DEAD

    def forget(self, now_s: float) -> None:
        """Drop what has been silent for a minute."""
        for incarnation, member in list(self._members.items()):
            if now_s - member.heard_s > FORGET_S:
                del self._members[incarnation]
                self.version += 1
                self._newest.pop(member.heartbeat.instance, None)
        for incarnation, since in list(self._gone.items()):
            if now_s - since > FORGET_S:
                del self._gone[incarnation]

    def members(self, *roles: Role) -> Iterable[Member]:
        """Return the known members of some roles (all roles if none is named)."""
        return [m for m in self._members.values() if not roles or m.heartbeat.role in roles]

    def usable(self, now_s: float, *roles: Role) -> list[Member]:
        """Return the members of some roles that may be given work now."""
        return [m for m in self.members(*roles) if m.usable(now_s)]

    def get(self, incarnation: Incarnation) -> Member | None:
        """Return what is known of one incarnation."""
        return self._members.get(incarnation)

    def health(self, incarnation: Incarnation, now_s: float) -> Health | None:
        """Return the health of an incarnation; DEAD if replaced, None if never heard of."""
        if incarnation in self._gone:
            return Health.DEAD
        member = self._members.get(incarnation)
        return member.health(now_s) if member else None

    def listening_s(self, now_s: float) -> float:
        """Return for how long somebody has been heard without a break; 0 while nobody is.

        Who hears nobody, not even himself, is deaf: parted from the bus, or stopped. Until he has
        listened for `DEAD_S`, the silence of one process proves nothing.
        """
        if now_s - self._heard_s >= SUSPECT_S:
            return 0.0
        return now_s - self._listening_since_s

    def shun(self, ref: WorkerRef) -> None:
        """Give an incarnation no new work until it is heard again."""
        member = self._members.get(ref.incarnation)
        if member is not None:
            member.shunned = True
            self.version += 1
