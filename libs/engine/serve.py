"""Serving one engine to one service over a channel."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any

import msgspec

from libs.engine.api import Engine, EngineDead
from libs.engine.channel import ChannelClosed, FrameTooLarge, HostEnd
from proto.base import ProtocolError
from proto.errors import ErrorCode
from proto.host import (
    AbortJob,
    EngineLoad,
    HostFailed,
    HostProgress,
    Job,
    JobFailed,
    JobFinished,
    PeerProbed,
    ProbePeer,
    StopHost,
    ToHost,
)
from proto.ids import JobId

__all__ = ["Ended", "Serving"]

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.1
"""How often the load is looked at."""
_REPEAT_S = 0.5
"""How often it is sent though it has not changed."""


class Ended(Enum):
    """Why a host is done."""

    STOPPED = auto()
    """The service asked for it."""
    ORPHANED = auto()
    """The service is gone."""
    FAILED = auto()
    """The engine died or did not start."""


class Serving:
    """Runs the engine's life: start, jobs, load, end."""

    def __init__(self, engine: Engine, *, stop_s: float, orphan_stop_s: float) -> None:
        self._engine = engine
        self._stop_s = stop_s
        self._orphan_stop_s = orphan_stop_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._jobs: set[JobId] = set()
        self._asked_to_stop = asyncio.Event()
        self._load = EngineLoad()

    async def run(self, channel: HostEnd) -> Ended:
        """Serve until the service or the engine is gone; the engine has ended on return."""
        channel.hand_on(partial(self._take, channel))
        reading = self._spawn(self._read(channel), "reader")
        starting = self._spawn(self._start(channel), "start")
        await asyncio.wait({reading, starting}, return_when=asyncio.FIRST_COMPLETED)
        dying = starting
        if starting.done() and starting.exception() is None and not starting.result():
            dying = self._spawn(self._engine.wait_dead(), "engine watch")
            beating = self._spawn(self._beat(channel), "load")
            await asyncio.wait({reading, dying, beating}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and reading.exception() is None:
            ended = reading.result()
        else:
            ended = Ended.FAILED
            channel.send(HostFailed(detail=_reason(dying)))
        await self._end(self._orphan_stop_s if ended is Ended.ORPHANED else self._stop_s)
        return ended

    async def _start(self, channel: HostEnd) -> str:
        """Start the engine; return why it did not, or nothing."""
        channel.send(HostProgress(text="starting the engine"))
        try:
            ready = await self._engine.start()
        except EngineDead as error:
            return str(error) or "the engine did not start"
        pids = dict.fromkeys((os.getpid(), *ready.pids))
        channel.send(msgspec.structs.replace(ready, pids=tuple(pids)))
        return ""

    async def _read(self, channel: HostEnd) -> Ended:
        """Wait until the service asks for the end, or is gone."""
        listening = self._spawn(self._listen(channel), "channel")
        stopping = self._spawn(self._asked_to_stop.wait(), "stop")
        await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return Ended.STOPPED if stopping.done() else Ended.ORPHANED

    async def _listen(self, channel: HostEnd) -> None:
        try:
            while True:
                # Messages are taken where they are read: this waits for the end.
                await channel.receive()
        except ChannelClosed:
            return
        except ProtocolError as error:
            _LOG.error("the service sent something else: %s", error)

    def _take(self, channel: HostEnd, messages: list[ToHost]) -> None:
        for message in messages:
            match message:
                case Job():
                    self._begin(message, channel)
                case AbortJob():
                    self._spawn(self._abort(message.job), "abort")
                case ProbePeer():
                    self._spawn(self._probe(message, channel), "probe")
                case StopHost():
                    self._asked_to_stop.set()

    def _begin(self, job: Job, channel: HostEnd) -> None:
        if self._asked_to_stop.is_set():
            return
        if job.job in self._jobs:
            self._fail(job.job, channel, "job id is live")
            return
        self._jobs.add(job.job)
        try:
            outputs = self._engine.run(job)
            outputs.deliver(channel.send, partial(self._finish, channel))
        except EngineDead:  # its death is told once, by the engine watch
            return
        except Exception as error:  # noqa: BLE001 - no job ends in silence
            self._break(job.job, channel, error)

    def _finish(self, channel: HostEnd, output: JobFinished | JobFailed) -> None:
        self._jobs.discard(output.job)
        self._send_load(channel)
        try:
            channel.send(output)
        except FrameTooLarge as error:
            self._break(output.job, channel, error)

    def _break(self, job: JobId, channel: HostEnd, error: Exception) -> None:
        """Tell of a job that ended by an exception: no job ends in silence."""
        _LOG.error("job failed", exc_info=error)
        self._jobs.discard(job)
        self._spawn(self._abort(job), "abort")
        self._fail(job, channel, f"{type(error).__name__}: {error}")

    def _fail(self, job: JobId, channel: HostEnd, detail: str) -> None:
        channel.send(JobFailed(job=job, code=ErrorCode.ENGINE_ERROR, detail=detail))

    async def _abort(self, job: JobId) -> None:
        with suppress(EngineDead):  # its death is told once, by the engine watch
            await self._engine.abort(job)

    async def _probe(self, ask: ProbePeer, channel: HostEnd) -> None:
        with suppress(EngineDead):  # its death is told once, by the engine watch
            found = await self._engine.probe(ask.source)
            channel.send(PeerProbed(number=ask.number, found=found))

    async def _beat(self, channel: HostEnd) -> None:
        loop = asyncio.get_running_loop()
        sent = 0.0
        while True:
            now = loop.time()
            if now - sent >= _REPEAT_S or self._changed():
                self._send_load(channel)
                sent = now
            await asyncio.sleep(_LOOK_S)

    def _changed(self) -> bool:
        load = self._engine.load()
        return msgspec.structs.replace(load, age_s=self._load.age_s) != self._load

    def _send_load(self, channel: HostEnd) -> None:
        self._load = self._engine.load()
        channel.send(self._load)

    async def _end(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self._engine.stop()
        except TimeoutError:
            _LOG.warning("the engine did not stop in time")
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _reason(task: asyncio.Task[str]) -> str:
    """Return why the engine is gone, from the task that was to tell."""
    if not task.done():
        return "the host failed"
    error = task.exception()
    if error is not None:
        _LOG.error("the engine failed", exc_info=error)
        return f"{type(error).__name__}: {error}"
    return task.result() or "no reason was given"
