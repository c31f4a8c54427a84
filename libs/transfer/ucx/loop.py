"""The plane's own thread: it sleeps until a port, another thread or the clock has work for it.

UCX is quiet only if asked in a certain order: progress a port until `arm` agrees to sleep, then
watch its descriptor. A port that does not agree stays hot and is served again at once.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

__all__ = ["Loop", "Member"]

_TICK_S = 0.1
_SPIN_S = 0.00003
"""How long a hot port is served without a pause when nothing comes of it."""
_NAP_S = 0.0001
"""Pause between two looks at a port that waits for its peer to take bytes out of shared memory."""
_PATIENCE_S = 0.001
"""How long it is looked at so often."""
_PAUSE_S = 0.001


class Member(Protocol):
    """Something with a UCX port."""

    @property
    def fd(self) -> int:
        """The descriptor that becomes readable when a turn is due."""
        ...

    def turn(self) -> tuple[bool, bool]:
        """Do what is due; return whether something came of it, and whether more is due at once."""
        ...


class Loop:
    """One thread, many ports. All methods but `post`, `hand` and `end` belong to that thread.

    Args:
        name: the thread's name.
        begin: called first, on the thread.
        tick: called about ten times a second while it returns True (something has a deadline).
        settle: called after each round.
        finish: called last, on the thread, however it ends.
    """

    def __init__(
        self,
        name: str,
        *,
        begin: Callable[[], None],
        tick: Callable[[float], bool],
        settle: Callable[[], None],
        finish: Callable[[], None],
    ) -> None:
        self._begin = begin
        self._tick = tick
        self._settle = settle
        self._finish = finish
        self._commands: deque[Callable[[], None]] = deque()
        self._members: dict[int, Member] = {}
        self._hot: set[Member] = set()
        self._timers: dict[Callable[[], None], float] = {}
        self._ending = False
        self._ticking = False
        self._asleep = False
        self._fruitful = 0.0
        """When something last came of a turn, or was due to."""
        self._epoll = select.epoll()
        self._called = threading.Event()
        """Whether the bell has rung since the thread last went to sleep."""
        self._bell_lock = threading.Lock()
        self._ended = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Callable[[], None]) -> None:
        """Have a command run on the thread; from any thread."""
        self._commands.append(command)
        if self._asleep:
            self._ring()

    def hand(self, command: Callable[[], None], within_s: float) -> None:
        """Have a command run on the thread and wait for it, but no longer than `within_s`.

        Two busy threads would share the GIL a switch interval at a time; a caller that waits
        leaves it to this one.
        """
        if within_s <= 0:
            self.post(command)
            return
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self.post(run)
        done.wait(within_s)

    def later(self, after_s: float, command: Callable[[], None]) -> None:
        """Have a command run once, `after_s` from the first time that it was asked for."""
        self._timers.setdefault(command, time.monotonic() + after_s)

    def end(self) -> None:
        """Stop the thread and wait for it; from any other thread, any number of times."""
        self._ending = True
        self._ring()
        self._thread.join()
        with self._bell_lock:
            if not self._ended:
                self._ended = True
                os.close(self._bell)
                self._epoll.close()

    def drain(self) -> None:
        """Run all commands that wait."""
        while self._commands:
            self._commands.popleft()()
            self._ticking = True

    def add(self, member: Member) -> None:
        """Serve a member from now on."""
        self._members[member.fd] = member
        self._epoll.register(member.fd, select.EPOLLIN)
        self._warm(member)

    def remove(self, member: Member) -> None:
        """Forget a member, before its port is closed."""
        if self._serves(member):
            del self._members[member.fd]
            self._epoll.unregister(member.fd)
        self._hot.discard(member)

    def touch(self, member: Member) -> None:
        """Give a member a turn soon, because something was done with its port."""
        if self._serves(member):
            self._hot.add(member)
            # What was done may have its answer within microseconds.
            self._fruitful = time.monotonic()

    def _serves(self, member: Member) -> bool:
        """Return whether a member is here; a number may belong to somebody else by now."""
        return self._members.get(member.fd) is member

    def _run(self) -> None:
        try:
            self._epoll.register(self._bell, select.EPOLLIN)
            self._begin()
            due = time.monotonic()
            while not self._ending:
                self._round()
                now = time.monotonic()
                if self._ticking and now >= due:
                    due = now + _TICK_S
                    self._ticking = self._tick(now)
                    self._settle()
        finally:
            self._asleep = False
            self._finish()

    def _round(self) -> None:
        self.drain()
        for member in tuple(self._hot):
            if member not in self._hot:
                continue
            fruit, more = member.turn()
            if fruit:
                self._fruitful = time.monotonic()
                self._ticking = True
            if not more:
                self._hot.discard(member)
        self._run_timers()
        self._settle()
        self._sleep()

    def _run_timers(self) -> None:
        if not self._timers:
            return
        now = time.monotonic()
        for command in [command for command, due in self._timers.items() if due <= now]:
            del self._timers[command]
            command()

    def _sleep(self) -> None:
        self._called.clear()
        self._asleep = True
        timeout = self._timeout()
        if timeout == _NAP_S:
            # epoll counts in milliseconds.
            self._called.wait(_NAP_S)
            timeout = 0.0
        for fd, _ in self._epoll.poll(timeout):
            member = self._members.get(fd)
            if member is not None:
                self._warm(member)
            elif fd == self._bell:
                os.eventfd_read(self._bell)
        self._asleep = False

    def _timeout(self) -> float | None:
        if self._commands or self._ending:
            return 0.0
        if self._hot:
            idle = time.monotonic() - self._fruitful
            if idle < _SPIN_S:
                return 0.0
            return _NAP_S if idle < _PATIENCE_S else _PAUSE_S
        return self._pause()

    def _pause(self) -> float | None:
        pause = _TICK_S if self._ticking else None
        if not self._timers:
            return pause
        first = max(0.0, min(self._timers.values()) - time.monotonic())
        return first if pause is None else min(first, pause)

    def _warm(self, member: Member) -> None:
        # A port that waits for its peer stays readable; only a port that was cool is news.
        if member not in self._hot:
            self._hot.add(member)
            self._fruitful = time.monotonic()

    def _ring(self) -> None:
        with self._bell_lock:
            if not self._ended:
                os.eventfd_write(self._bell, 1)
                self._called.set()
