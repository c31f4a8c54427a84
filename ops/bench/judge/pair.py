"""One prefill and one decode engine that may be killed and started again, and what they hold."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clock import SystemClock
from libs.engine.process import HostedEngine
from libs.lifecycle.tasks import Tasks
from libs.models import ModelFolder
from ops.bench.rig import Rig, greedy, options_for, rig
from proto.host import EngineLoad, EngineReady
from proto.workers import Role

__all__ = ["PAIR", "WANT_S", "Pair", "pair"]

PAIR = (Role.PREFILL, Role.DECODE)
WANT_S = 3.0
"""How long one side waits for the other."""
_LOOK_S = 0.01
_PROVE_S = 5.0
"""How long a figure of nothing may take to be confirmed by a newer one."""
_GONE_S = 5.0
_OPTIONS: dict[str, Any] = {
    "page_size": 16,
    # Small slabs, so that a transfer takes many and can be met halfway.
    "chunk_bytes": 32 << 10,
    "credits": 2,
    "want_timeout_s": WANT_S,
    "engine_args": {"chunked_prefill_size": 128},
}
_VOCABULARY = range(1000, 40000)
_PROBE_SEED = 1
_PROBE_TOKENS = 40


class Pair:
    """Two engines, in lives that may end."""

    def __init__(self, engines: Rig, tasks: Tasks, model: ModelFolder, logs: Path) -> None:
        self.rig = engines
        self.tasks = tasks
        self._model = model
        self._logs = logs
        self._reference: list[int] = []

    def load(self, role: Role) -> EngineLoad:
        """Return an engine's newest figures."""
        return self.rig.engines[role].load()

    def scheduler(self, role: Role) -> int:
        """Return the process that owns the engine's KV memory and its data plane."""
        return self.rig.ready[role].pids[1]

    def kill(self, role: Role, *, child: bool) -> None:
        """Kill the host with all it has started, or only its scheduler."""
        if child:
            os.kill(self.scheduler(role), signal.SIGKILL)
        else:
            os.killpg(os.getpgid(self.rig.ready[role].pids[0]), signal.SIGKILL)

    def engine(self, role: Role, **more: Any) -> HostedEngine:
        """Return an engine that has not started, with the options of the pair and more."""
        return HostedEngine(
            options_for(role, self._model, self._logs, **(_OPTIONS | more)),
            SystemClock(),
            self.tasks,
            on_progress=lambda _text: None,
        )

    def with_engine(self, role: Role, engine: HostedEngine, ready: EngineReady) -> Pair:
        """Return this pair in its present lives, but for another engine in one of the roles."""
        lives = Rig(
            {**self.rig.engines, role: engine}, {**self.rig.ready, role: ready}, self.rig.start_s
        )
        return Pair(lives, self.tasks, self._model, self._logs)

    async def restart(self, role: Role) -> str:
        """Start the next life of an engine; return what was wrong with the end of the former."""
        former = self.rig.engines[role]
        await former.stop()
        left = await _left_after(self.rig.pids(role), _GONE_S)
        fresh = self.engine(role)
        self.rig.engines[role] = fresh
        self.rig.ready[role] = await fresh.start()
        return f"{role} left processes {left}" if left else ""

    async def probe(self) -> str:
        """Answer a fixed prompt; return what is wrong with the answer, or nothing."""
        ids = token_ids(_PROBE_TOKENS, _PROBE_SEED)
        try:
            async with asyncio.timeout(_PROVE_S):
                answer = await self.rig.split(ids, greedy(4))
        except TimeoutError:
            return f"no answer within {_PROVE_S:g} s"
        if answer.failure:
            return answer.failure
        self._reference = self._reference or answer.ids
        return "" if answer.ids == self._reference else "another answer than before"

    async def free_after(self, begin: float, roles: Sequence[Role], limit_s: float) -> float | None:
        """Return the seconds from `begin` until engines held nothing, or None after the limit.

        The figures are the engines' own. Nothing counts as proven before every engine has said so
        in a figure that is younger than this call.
        """
        called = time.monotonic()
        since: float | None = None
        while True:
            now = time.monotonic()
            loads = [self.load(role) for role in roles]
            if any(_holds(load) for load in loads):
                since = None
            elif since is None:
                since = now
            if since is not None and all(now - load.age_s > called for load in loads):
                return max(0.0, since - begin)
            if now - begin > limit_s + (0.0 if since is None else _PROVE_S):
                return None
            await asyncio.sleep(_LOOK_S)


def token_ids(count: int, seed: int) -> list[int]:
    """Return made-up token ids; another seed gives others from the first on."""
    return random.Random(seed).choices(_VOCABULARY, k=count)  # noqa: S311 - must repeat


@asynccontextmanager
async def pair(model: ModelFolder, logs: Path, *more: Role) -> AsyncGenerator[Pair]:
    """Start a pair that has served one request, and more; stop whatever lives on leaving.

    Raises:
        EngineDead: an engine did not start.
        RuntimeError: the pair does not answer.
    """
    async with Tasks() as tasks, rig((*PAIR, *more), model, logs, **_OPTIONS) as engines:
        ready = Pair(engines, tasks, model, logs)
        if problem := await ready.probe():
            raise RuntimeError(f"a fresh pair does not answer: {problem}")
        yield ready


def _holds(load: EngineLoad) -> bool:
    return bool(load.kv_used_tokens or load.running or load.waiting or load.open_rooms)


async def _left_after(pids: Sequence[int], limit_s: float) -> list[int]:
    """Return the processes that still run after the limit."""
    until = time.monotonic() + limit_s
    while True:
        left = [pid for pid in pids if _runs(pid)]
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(_LOOK_S)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
