"""Noticing at once that a peer on the same host has died.

UCX looks after a peer on shared memory once a second; the kernel tells immediately.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from libs.transfer.ucx import Loop

__all__ = ["ProcessWatch"]


class ProcessWatch:
    """A look at one process of this host's process namespace.

    Args:
        loop: where to wait.
        pid: the process.
        gone: called on the loop's thread, at least once, when it has died.
    """

    def __init__(self, loop: Loop, pid: int, gone: Callable[[], None]) -> None:
        self._loop = loop
        self._gone = gone
        self._poll = select.poll()
        self.fd = -1
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            gone()
            return
        self._poll.register(self.fd, select.POLLIN)
        loop.add(self)

    def turn(self) -> tuple[bool, bool]:
        """Report the death, if there is one."""
        if not self._poll.poll(0):
            return False, False
        self._gone()
        return True, False

    def close(self) -> None:
        """Stop looking."""
        if self.fd >= 0:
            self._loop.remove(self)
            os.close(self.fd)
            self.fd = -1
