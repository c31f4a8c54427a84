"""Ending UCX workers that ucxx cannot let go of.

A peer that dies in the middle of a message leaves a receive that can neither end nor be cancelled,
and a peer that takes no more bytes leaves sends that ucxx goes on listing. Its worker and such a
request then hold each other for ever, and with them descriptors and shared memory. UCX itself can
end such a worker: it gives up what was being received.

ucxx's own destructor never runs for a worker that is ended here, because the same circle still
holds it; what is left of it is a few kilobytes.
"""

from __future__ import annotations

import ctypes
import gc
import os
from functools import cache
from typing import Any

__all__ = ["Wreck"]

_LIBRARY = "libucp.so.0"
_ADD, _DELETE = 1, 2
"""EPOLL_CTL_ADD and EPOLL_CTL_DEL."""


class _Event(ctypes.Structure):
    """struct epoll_event."""

    _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class Wreck:
    """A look at one worker while it is being closed.

    An event that never comes is added to the worker's own set of descriptors. If it can be taken
    out again after the worker was let go, the set, and so the worker, is still there.

    Args:
        handle: UCX's worker.
        fd: the worker's set of descriptors; its number may mean something else afterwards.
    """

    def __init__(self, handle: int, fd: int) -> None:
        self._handle = handle
        self._fd = fd
        self._mark = os.eventfd(0, os.EFD_CLOEXEC)
        self._marked = self._control(_ADD)

    def bury(self, request: Any) -> None:
        """Keep a send for ever that has not ended; it keeps ucxx's worker.

        UCX ends it while its worker is destroyed. If nothing held ucxx's worker then, that would
        destroy the same worker again.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))

    def clear(self) -> bool:
        """End the worker if it is still there; return whether it was.

        Call it once, after all references to the worker have been dropped.
        """
        try:
            if not self._marked or not self._control(_DELETE):
                return False
            # An exception that nobody has looked at yet may hold a request: then it is no wreck.
            self._control(_ADD)
            gc.collect()
            if not self._control(_DELETE):
                return False
        finally:
            os.close(self._mark)
        _library().ucp_worker_destroy(self._handle)
        os.close(self._fd)
        return True

    def _control(self, operation: int) -> bool:
        event = _Event(0, 0)
        libc = ctypes.CDLL(None)
        return libc.epoll_ctl(self._fd, operation, self._mark, ctypes.byref(event)) == 0


@cache
def _library() -> Any:
    """Return the UCX that this process has loaded already."""
    library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    library.ucp_worker_destroy.argtypes = [ctypes.c_void_p]
    library.ucp_worker_destroy.restype = None
    return library
