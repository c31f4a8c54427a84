"""UCX, as little of it as the plane needs. The only file that knows ucxx.

Only ucxx's core objects are used: its asyncio layer spins. Everything here belongs to one thread,
and to a process that will not fork afterwards.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.transfer.ucx.lanes import carrier_of, lane_options
from libs.transfer.ucx.wreck import Wreck
from proto.errors import ErrorCode, PdbusError
from proto.kv import Lane

__all__ = ["LaneContext", "Line", "Operation", "Port", "TransportError"]

Bytes = npt.NDArray[np.uint8]

_RESOURCE = re.compile(r"resource\s+\d+\s*:.*--\s+(\w+)/(\S+)")
_FULL_MASK = (1 << 64) - 1


class TransportError(Exception):
    """UCX reports that an operation or a peer has failed."""


class LaneContext:
    """A UCX context that knows one transport, and proof of it.

    Raises:
        PdbusError: the lane cannot be had here (`lane_refused`).
    """

    def __init__(self, lane: Lane, interface: str | None) -> None:
        self.lane = lane
        self.api = _load()
        options = lane_options(lane, interface)
        features = (self.api.Feature.TAG, self.api.Feature.WAKEUP)
        try:
            self._context = self.api.UCXContext(options, feature_flags=features)
            info = self._context.info
        except self.api.UCXError as error:
            devices = os.environ.get("UCX_NET_DEVICES", "")
            # A device that is not there is told by UCX to its own log only.
            said = f" with UCX_NET_DEVICES={devices} in the environment" if devices else ""
            named = f" with interface {interface}" if interface else said
            raise PdbusError(ErrorCode.LANE_REFUSED, f"lane {lane}{named}: {error}") from error
        self.resources = tuple("/".join(found) for found in _RESOURCE.findall(info))
        """Transport and device of everything UCX may use here, such as `sysv/memory`."""
        transports = {name.split("/")[0] for name in self.resources} - {"self"}
        if transports != {str(carrier_of(lane))}:
            raise PdbusError(
                ErrorCode.LANE_REFUSED, f"lane {lane}: UCX offers {', '.join(self.resources)}"
            )

    def port(self) -> Port:
        """Open a port on this lane.

        Raises:
            TransportError: the system has no means left for it (segments, descriptors).
        """
        try:
            return Port(self.api, self._context)
        except self.api.UCXError as error:
            raise TransportError(str(error)) from error


class Port:
    """One UCX worker: it sends and receives tag messages, and dies without a trace."""

    def __init__(self, api: Any, context: Any) -> None:
        self._api = api
        self._worker: Any = api.UCXWorker(context)
        self._worker.init_blocking_progress_mode()
        self._lines: set[Line] = set()
        self._pending: set[Operation] = set()
        self.fd: int = self._worker.epoll_file_descriptor
        self.address: bytes = self._worker.address.tobytes()

    def connect(self, address: bytes, on_lost: Callable[[], None]) -> Line:
        """Return a line to another port; `on_lost` is called during `progress`.

        Raises:
            TransportError: the address is not one that this lane reaches.
        """
        api = self._api
        if not address:
            raise TransportError("cannot connect: no address")
        try:
            remote = api.UCXAddress.create_from_buffer(np.frombuffer(address, np.uint8).copy())
            endpoint = api.UCXEndpoint.create_from_worker_address(
                self._worker, remote, endpoint_error_handling=True
            )
        except (api.UCXError, ValueError) as error:
            raise TransportError(f"cannot connect: {error}") from error
        endpoint.set_close_callback(on_lost)
        line = Line(endpoint)
        self._lines.add(line)
        return line

    def receive(self, buffer: Bytes, tag: int, mask: int = _FULL_MASK) -> Operation:
        """Post a receive; `buffer` belongs to UCX until it is done or the port is closed.

        Raises:
            TransportError: UCX cannot take it.
        """
        api = self._api
        array = api.Array(buffer)
        try:
            request = self._worker.tag_recv(array, api.UCXXTag(tag), api.UCXXTagMask(mask))
        except api.UCXError as error:
            raise TransportError(str(error)) from error
        return self._track(Operation(request, array))

    def send(self, line: Line, data: Bytes, tag: int) -> Operation:
        """Send; `data` belongs to UCX until it is done or the port is closed.

        Raises:
            TransportError: the peer is lost.
        """
        api = self._api
        array = api.Array(data)
        try:
            request = line.endpoint.tag_send(array, api.UCXXTag(tag))
        except api.UCXError as error:
            raise TransportError(str(error)) from error
        return self._track(Operation(request, array, sends=True))

    def progress(self) -> None:
        """Let UCX do all it can do now, without the GIL."""
        self._worker.progress()

    def arm(self) -> bool:
        """Return whether `fd` will become readable for whatever happens next."""
        return self._worker.arm()

    def turn(self, work: Callable[[], bool]) -> tuple[bool, bool]:
        """Progress and do the work that came of it.

        Args:
            work: handles what has ended or arrived; returns whether there was anything.

        Returns:
            whether there was anything, and whether another turn is due at once.
        """
        # The first no may only mean that what woke us was still on the descriptor. It has to be
        # looked after before the next try, or it would be forgotten.
        for _ in range(2):
            self.progress()
            if work():
                return True, True
            if self.arm():
                return False, False
        return False, True

    def done(self, operation: Operation) -> bool:
        """Return whether an operation has ended well.

        Raises:
            TransportError: it has failed.
        """
        request = operation.request
        if request is None or not request.completed:
            return False
        self._pending.discard(operation)
        operation.request = operation.array = None
        try:
            request.check_error()
        except self._api.UCXError as error:
            # The traceback keeps this frame, and a request keeps its worker.
            del request
            raise TransportError(str(error)) from error
        return True

    def drop(self, line: Line) -> None:
        """End one line; what was sent on it may be lost."""
        self._lines.discard(line)
        line.hang_up()
        line.close()

    def close(self) -> None:
        """Destroy the worker and all that hangs on it: requests, lines, posted receives."""
        if self._worker is None:
            return
        self._hang_up()
        wreck = Wreck(self._worker.handle, self.fd)
        # Buffers outlive the worker: until it is gone UCX may write to them.
        arrays = [operation.array for operation in self._pending]
        for operation in self._pending:
            if operation.sends and not operation.request.completed:
                wreck.bury(operation.request)
            operation.request = operation.array = None
        self._pending.clear()
        for line in self._lines:
            line.close()
        self._lines.clear()
        self._worker = None
        wreck.clear()
        arrays.clear()

    def _hang_up(self) -> None:
        """Close the lines whose peer is not known to be lost, which ends what is being sent.

        Nothing else does: a send whose peer takes no more bytes would hold its endpoint, and UCX
        ends the process rather than destroy a worker that still has something to send.
        """
        for line in self._lines:
            line.hang_up()
        self._worker.progress()

    def _track(self, operation: Operation) -> Operation:
        self._pending.add(operation)
        return operation


class Operation:
    """A send or a receive under way; only its port looks inside."""

    __slots__ = ("array", "request", "sends")

    def __init__(self, request: Any, array: Any, *, sends: bool = False) -> None:
        self.request = request
        self.array = array
        self.sends = sends


class Line:
    """A way to one peer's port; only its own port looks inside."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: Any) -> None:
        self.endpoint: Any = endpoint

    @property
    def alive(self) -> bool:
        """Whether UCX still believes in the peer."""
        return self.endpoint is not None and self.endpoint.alive

    def hang_up(self) -> None:
        """Close the endpoint without asking the peer, unless UCX has done so already."""
        if self.endpoint is not None:
            self.endpoint.remove_close_callback()
            if self.endpoint.alive:
                self.endpoint.close_blocking()

    def close(self) -> None:
        """Let go of the endpoint, whose destructor closes it where it is still open."""
        endpoint: Any = self.endpoint
        self.endpoint = None
        if endpoint is not None:
            endpoint.remove_close_callback()


def _load() -> Any:
    """Import ucxx now: it costs half a second and reads the environment."""
    # UCX would log to stdout, which belongs to the program; and it would warn of a variable that
    # ucxx sets but this build of UCX does not know.
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    try:
        core = importlib.import_module("ucxx._lib.libucxx")
        arrays = importlib.import_module("ucxx._lib.arr")
    except ImportError as error:
        raise PdbusError(ErrorCode.LANE_REFUSED, f"no ucxx: {error}") from error
    return _Api(core, arrays)


class _Api:
    """The names of ucxx that this file uses."""

    def __init__(self, core: Any, arrays: Any) -> None:
        self.Array = arrays.Array
        self.Feature = core.Feature
        self.UCXAddress = core.UCXAddress
        self.UCXContext = core.UCXContext
        self.UCXEndpoint = core.UCXEndpoint
        self.UCXError = core.UCXError
        self.UCXWorker = core.UCXWorker
        self.UCXXTag = core.UCXXTag
        self.UCXXTagMask = core.UCXXTagMask
