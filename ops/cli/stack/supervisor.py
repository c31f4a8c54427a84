"""Keeps the processes of one stack alive, and ends them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import ops
from libs.lifecycle import Tasks
from ops.cli.errors import CommandError
from ops.cli.stack.layout import SlotSpec
from ops.cli.stack.process import Children
from ops.cli.stack.record import SlotRecord, SlotState
from ops.cli.stack.slot import Slot

__all__ = ["Supervisor"]

GRACE_S = 5.0
"""How long the running requests of one rank may take, where the caller does not say."""

EXTRA_S = 10.0
"""What a process may take beyond its grace to end what is left, before it is killed."""

HOPELESS = 3
"""A process that ends this often in a row without ever having been ready will not get ready."""

_ROOT = Path(ops.__file__).resolve().parent.parent


class Supervisor:
    """Runs all slots of a stack.

    Args:
        specs: what to run.
        log_dir: where each process appends its output, in `<slot>.log`.
        changed: called after each change of any slot.
        grace_s: how long a process that was told to end lets its requests go on.
    """

    def __init__(
        self,
        specs: Sequence[SlotSpec],
        *,
        log_dir: Path,
        changed: Callable[[], None],
        grace_s: float = GRACE_S,
    ) -> None:
        self._limit_s = grace_s + EXTRA_S
        self._changed_outside = changed
        self._changed = asyncio.Event()
        self._slots: list[Slot] = []
        self._children = Children()
        self._tasks = Tasks()
        self._killing = asyncio.Event()
        for spec in specs:
            log = log_dir / f"{spec.name}.log"
            slot = Slot(
                spec,
                children=self._children,
                cwd=_ROOT,
                log=log,
                limit_s=self._limit_s,
                changed=self._note,
            )
            self._slots.append(slot)

    @property
    def slots(self) -> tuple[SlotRecord, ...]:
        """What is known of each process now."""
        return tuple(slot.record for slot in self._slots)

    @property
    def ready(self) -> bool:
        """Whether every process is ready."""
        return all(slot.record.state is SlotState.READY for slot in self._slots)

    def start(self) -> None:
        """Start all processes at once; each waits for what it needs by itself."""
        for slot in self._slots:
            self._tasks.spawn(slot.keep(), name=f"keep {slot.spec.name}")

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when every process is ready.

        Raises:
            CommandError: one of them cannot get ready, or the time is over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    self._give_up_on_the_hopeless()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = ", ".join(
                f"{slot.record.name} ({slot.record.reason or slot.record.state})"
                for slot in self._slots
                if slot.record.state is not SlotState.READY
            )
            message = f"not ready after {timeout_s:.0f} s: {late}"
            raise CommandError(message) from None

    def restart(self, name: str) -> None:
        """Let one process end in order and start another in its place.

        Raises:
            CommandError: there is no process of that name.
        """
        for slot in self._slots:
            if slot.spec.name == name:
                slot.restart()
                return
        message = f"there is no process {name!r}"
        raise CommandError(message)

    async def stop(self) -> None:
        """End all processes, rank by rank; return when none is left."""
        for rank in sorted({slot.spec.stop_rank for slot in self._slots}):
            await self._stop_rank([s for s in self._slots if s.spec.stop_rank == rank])
        await self._tasks.settle(EXTRA_S)
        await self._tasks.cancel()

    def kill(self) -> None:
        """End all processes now."""
        self._killing.set()
        for slot in self._slots:
            slot.signal(signal.SIGKILL)

    async def _stop_rank(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            slot.signal(signal.SIGKILL if self._killing.is_set() else signal.SIGTERM)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._gone(slots)
        except TimeoutError:
            for slot in slots:
                slot.signal(signal.SIGKILL)
            await self._gone(slots)

    async def _gone(self, slots: Sequence[Slot]) -> None:
        while any(slot.record.state is not SlotState.STOPPED for slot in slots):
            self._changed.clear()
            await self._changed.wait()

    def _give_up_on_the_hopeless(self) -> None:
        for slot in self._slots:
            if not slot.was_ready and slot.backoff.quick_ends >= HOPELESS:
                record = slot.record
                message = (
                    f"{record.name} does not start: {record.reason}"
                    f"{_last_words(Path(record.log))} (log: {record.log})"
                )
                raise CommandError(message)

    def _note(self) -> None:
        self._changed.set()
        self._changed_outside()


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:300]}" if last else ""
