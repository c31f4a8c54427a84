"""`stack.json`, by which commands find a running stack, and the lock that keeps it single.

The lock is a kernel lock on `stack.lock`: it ends with the supervisor whatever kills it, so a
stale one cannot exist. The record is trusted only while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from enum import StrEnum
from pathlib import Path

import msgspec

from ops.cli.errors import CommandError

__all__ = [
    "SlotRecord",
    "SlotState",
    "StackRecord",
    "StackState",
    "hold_lock",
    "holder",
    "load",
    "running_stack",
    "store",
]

RECORD = "stack.json"
LOCK = "stack.lock"


class SlotState(StrEnum):
    """What the supervisor knows about one process."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Its process was told to end, and finishes what runs."""
    DRAINED = "drained"
    """Its process ended in order, as somebody wanted; none follows until `pdbus restart`."""
    CRASHED = "crashed"
    """Its process ended; the next one starts after a pause."""
    STOPPED = "stopped"


class StackState(StrEnum):
    """What a stack as a whole does."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process that the supervisor keeps alive."""

    name: str
    """`<role>-<number>`; stays the same over restarts."""
    role: str
    instance: str
    """The identity on the bus; stays the same over restarts, the incarnation does not."""
    pid: int | None
    health_port: int
    state: SlotState
    reason: str = ""
    restarts: int = 0
    log: str = ""


class StackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that another command needs to talk to a stack."""

    supervisor: int
    """Process id."""
    state: StackState
    nats_url: str
    urls: tuple[str, ...]
    """Base addresses of the gateways."""
    model: str
    engine: str
    started_ms: int
    error: str = ""
    slots: tuple[SlotRecord, ...] = ()

    def slot(self, name: str) -> SlotRecord:
        """Return the slot of that name."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        known = ", ".join(slot.name for slot in self.slots)
        message = f"there is no process {name!r}; there are: {known}"
        raise CommandError(message)


def store(state_dir: Path, record: StackRecord) -> None:
    """Replace the record; readers see the old one or the new one, never a part."""
    path = state_dir / RECORD
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    draft.replace(path)


def load(state_dir: Path) -> StackRecord | None:
    """Return the record, or None where there is none that can be read."""
    try:
        return msgspec.json.decode((state_dir / RECORD).read_bytes(), type=StackRecord)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def holder(state_dir: Path) -> int | None:
    """Return the process id of the supervisor that runs in a state folder, or None."""
    try:
        handle = os.open(state_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(handle, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(handle)


def running_stack(state_dir: Path) -> StackRecord:
    """Return the record of the stack that runs in a state folder.

    Raises:
        CommandError: none runs there.
    """
    record = load(state_dir) if holder(state_dir) is not None else None
    if record is None:
        message = f"no stack runs in {state_dir}; start one with: pdbus up --state-dir {state_dir}"
        raise CommandError(message)
    return record


@contextlib.contextmanager
def hold_lock(state_dir: Path) -> Generator[None]:
    """Own a state folder for as long as the context lasts.

    Raises:
        CommandError: another supervisor owns it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(handle, 32, 0).decode(errors="replace").strip()
            message = f"a stack runs in {state_dir} already (process {pid}); stop it: pdbus down"
            raise CommandError(message) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
