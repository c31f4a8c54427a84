"""Starting and ending operating system processes so that none is left behind.

Each child leads its own session, so a Ctrl-C of the terminal reaches only the supervisor, and
dies with it (`PR_SET_PDEATHSIG`). The supervisor adopts what its dead children leave behind
(`PR_SET_CHILD_SUBREAPER`), and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Children", "adopt_orphans", "children_of", "kill_group", "tie_to_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_WAIT_S = 0.02
_ORPHAN_ROUNDS = 50


class Children:
    """All processes that this one started, and what the dead ones left behind."""

    def __init__(self) -> None:
        # What other code of this process has started is not ours to end.
        self._known = set(children_of(os.getpid()))
        self._starting = asyncio.Lock()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        env: Mapping[str, str] | None = None,
        timer_slack_ns: int = 0,
    ) -> asyncio.subprocess.Process:
        """Start a process that appends its output to `log` and dies with this one.

        Args:
            env: variables that it has beside ours.
            timer_slack_ns: how late its timers may be; 0 leaves that to the system.
        """
        # While a child is being started its id is not known yet, and it would look adopted.
        async with self._starting:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=tie_to_parent(timer_slack_ns),
                )
            self._known.add(process.pid)
            return process

    async def bury(self, pid: int) -> None:
        """Clear what a child that has ended left: its group, and the groups of its children."""
        self._known.discard(pid)
        kill_group(pid)
        for _ in range(_ORPHAN_ROUNDS):
            async with self._starting:
                keep = {*self._known, os.getpgrp()}
                orphans = [p for p in children_of(os.getpid()) if not _belongs(p, keep)]
                for orphan in orphans:
                    _kill_and_collect(orphan)
            if not orphans:
                return
            await asyncio.sleep(_ORPHAN_WAIT_S)


def adopt_orphans() -> None:
    """Become the parent of every process whose parent, one of our descendants, has died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process group that `pid` leads; nothing happens if it is gone."""
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.killpg(pid, number)


def children_of(parent: int) -> list[int]:
    """Return the process ids of the direct children of a process, zombies included."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        # The name in brackets may hold spaces; the state and the parent follow it.
        if int(text.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found


def tie_to_parent(timer_slack_ns: int = 0) -> Callable[[], None]:
    """Return what a child runs before its program, so that it dies with this process.

    Its timers may then be late by `timer_slack_ns`, if that is not 0.
    """
    # The library is loaded before the fork: the child may only make plain calls.
    library = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if timer_slack_ns:
            library.prctl(_PR_SET_TIMERSLACK, timer_slack_ns, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _belongs(pid: int, groups: set[int]) -> bool:
    try:
        return pid in groups or os.getpgid(pid) in groups
    except ProcessLookupError:
        return True


def _kill_and_collect(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it is gone already
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
