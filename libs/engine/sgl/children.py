"""Knowing at once that a process below the engine has died."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Children"]


class Children:
    """Watches processes through their pidfds; SGLang's own watchdog looks once a second."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self.pids = pids
        self._fds: dict[int, int] = {}

    def watch(self, loop: asyncio.AbstractEventLoop, on_death: Callable[[int], None]) -> None:
        """Call `on_death` with the id of the first process that ends."""
        for pid in self.pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                loop.call_soon(on_death, pid)
                return
            self._fds[pid] = fd
            loop.add_reader(fd, on_death, pid)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop to watch."""
        for fd in self._fds.values():
            loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()

    def kill(self) -> None:
        """Kill those that still live; they hold nothing that outlives them."""
        for pid in self.pids:
            # It may be the one that died.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
