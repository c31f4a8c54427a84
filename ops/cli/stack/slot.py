"""One supervised process: started, watched until it is ready, and started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from libs.lifecycle import Tasks
from ops.cli.stack.backoff import Backoff
from ops.cli.stack.layout import SlotSpec
from ops.cli.stack.ports import free_port
from ops.cli.stack.probe import DRAINING
from ops.cli.stack.process import Children, kill_group
from ops.cli.stack.record import SlotRecord, SlotState

__all__ = ["Slot"]

POLL_S = 0.05
PATIENT_POLL_S = 0.25
"""Between two questions to a process that takes longer than `EAGER_S` to get ready."""
EAGER_S = 8.0
STEADY_POLL_S = 5.0
"""Between two questions to a process that is ready."""


class Slot:
    """Keeps one process alive.

    Args:
        limit_s: how long a process that was told to end may take before it is killed.
        changed: called after each change of `record`.
    """

    def __init__(
        self,
        spec: SlotSpec,
        *,
        children: Children,
        cwd: Path,
        log: Path,
        limit_s: float,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._children = children
        self.backoff = Backoff()
        self.was_ready = False
        self._cwd = cwd
        self._log = log
        self._limit_s = limit_s
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._told: asyncio.subprocess.Process | None = None
        """The process that was told to end: a second signal would cut it off."""
        self._leave = False
        self._again = False
        self._called = asyncio.Event()
        self.record = SlotRecord(
            name=spec.name,
            role=spec.role,
            instance=spec.instance,
            pid=None,
            health_port=spec.port or 0,
            state=SlotState.STARTING,
            reason="starting",
            log=str(log),
        )

    @property
    def pid(self) -> int | None:
        """Process id of the living process."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def keep(self) -> None:
        """Run processes one after another until the slot is told to stop."""
        try:
            while not self._leave:
                self._again = False
                self._called.clear()
                began = time.monotonic()
                code, end = await self._live()
                if self._leave or self._again:
                    continue
                if code in self.spec.drained:
                    self._set(state=SlotState.DRAINED, pid=None, reason="" if code == 0 else end)
                    await self._called.wait()
                    continue
                pause = self.backoff.after(time.monotonic() - began)
                restarts = self.record.restarts + 1
                self._set(state=SlotState.CRASHED, pid=None, reason=end, restarts=restarts)
                await self._pause(pause)
        finally:
            self._set(state=SlotState.STOPPED, pid=None, reason="")

    def signal(self, number: int) -> None:
        """Tell the process to end; no other one is started after it."""
        self._leave = True
        self._called.set()
        process = self._process
        if number == signal.SIGKILL and process is not None and process.returncode is None:
            kill_group(process.pid)
        elif number != signal.SIGKILL:
            self._tell()

    def restart(self) -> None:
        """Let the process end in order and start another; where there is none, start one now."""
        if self._leave:
            return
        self._again = True
        self._called.set()
        self.backoff = Backoff()
        if self._tell():
            self._set(state=SlotState.DRAINING, reason="")

    def _tell(self) -> bool:
        """Tell the process once to end; return whether there is one."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        if self._told is not process:
            self._told = process
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                process.send_signal(signal.SIGTERM)
        return True

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):  # nobody called: the next one starts
            async with asyncio.timeout(seconds):
                await self._called.wait()

    async def _live(self) -> tuple[int | None, str]:
        """Live through one process; return its exit code and how it died."""
        port = self.spec.port or free_port()
        try:
            process = await self._children.spawn(
                self.spec.argv(port),
                cwd=self._cwd,
                log=self._log,
                env=self.spec.env,
                timer_slack_ns=self.spec.timer_slack_ns,
            )
        except OSError as error:
            return None, f"cannot be started: {error}"
        self._process = process
        if self._leave:
            kill_group(process.pid)
        else:
            # Who called while it was started gets this one.
            self._again = False
            self._called.clear()
        self._set(state=SlotState.STARTING, pid=process.pid, health_port=port, reason="starting")
        async with Tasks() as tasks:
            tasks.spawn(self._watch(port), name=f"watch {self.spec.name}")
            tasks.spawn(self._limit(process), name=f"limit {self.spec.name}")
            code = await process.wait()
        await self._children.bury(process.pid)
        return code, _death(code)

    async def _watch(self, port: int) -> None:
        began = time.monotonic()
        while True:
            health = await self.spec.check(port)
            if self._called.is_set():
                # It ends: what it says of itself is no news any more.
                return
            if health.ready:
                self.was_ready = True
                self._set(state=SlotState.READY, reason="")
                await asyncio.sleep(STEADY_POLL_S)
                began = time.monotonic()
                continue
            drains = health.reason == DRAINING
            state = SlotState.DRAINING if drains else SlotState.STARTING
            self._set(state=state, reason="" if drains else health.reason)
            eager = time.monotonic() - began < EAGER_S
            await asyncio.sleep(POLL_S if eager else PATIENT_POLL_S)

    async def _limit(self, process: asyncio.subprocess.Process) -> None:
        await self._called.wait()
        await asyncio.sleep(self._limit_s)
        kill_group(process.pid)

    def _set(self, **changes: Any) -> None:
        after = msgspec.structs.replace(self.record, **changes)
        if after != self.record:
            self.record = after
            self._changed()


def _death(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
