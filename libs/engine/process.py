"""The engine port for worker services: an engine that lives in a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from libs.clock import Clock
from libs.engine.api import EngineDead
from libs.engine.channel import ChannelClosed, FrameTooLarge, ServiceEnd, open_service_end
from libs.engine.options import HostOptions
from libs.engine.stream import OutputStream
from libs.telemetry import get_logger
from proto.base import ProtocolError
from proto.errors import ErrorCode
from proto.host import (
    AbortJob,
    EngineLoad,
    EngineReady,
    FromHost,
    HostFailed,
    HostProgress,
    Job,
    JobFailed,
    JobFinished,
    JobTokens,
    PeerProbed,
    ProbePeer,
    StepTokens,
    StopHost,
)
from proto.ids import Incarnation, JobId
from proto.kv import PeerAddress
from proto.pairs import PairProbe

__all__ = ["HostedEngine", "Progress", "Spawner"]

Answer = TypeVar("Answer")
_NoTokens = (
    EngineReady | HostProgress | JobFinished | JobFailed | EngineLoad | PeerProbed | HostFailed
)
Progress = Callable[[str], None]
"""Told what the host does before it is ready."""

_REASON_S = 0.1
"""How long a lost socket waits for the exit status that explains it."""
_LAST_WORDS_S = 0.2
"""How long an exited host's socket may still give what it had sent."""
_STOP_S = 6.0
"""How long a host may take to end in order."""
_REAP_S = 5.0
_PROBE_S = 15.0
"""More than a data plane takes to connect, to probe, or to give either up."""
_POLL_S = 0.01
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Spawner(Protocol):
    """Owns tasks; `libs.lifecycle.Tasks` is one."""

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner."""
        ...


class HostedEngine:
    """One engine host and the connection to it.

    Args:
        options: what the host runs.
        clock: dates the load figures.
        tasks: owns the reader of the socket.
        on_progress: told what the host does before it is ready; logged if not given.
    """

    def __init__(
        self,
        options: HostOptions,
        clock: Clock,
        tasks: Spawner,
        *,
        on_progress: Progress | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._tasks = tasks
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._exited = asyncio.Event()
        self._channel: ServiceEnd | None = None
        self._ready: asyncio.Future[EngineReady] | None = None
        self._streams: dict[JobId, OutputStream] = {}
        self._probes: dict[int, asyncio.Future[PairProbe]] = {}
        self._asked = 0
        self._load = EngineLoad()
        self._load_at = 0.0
        self._dead: str | None = None
        self._gone = asyncio.Event()
        self._told = ""

    @property
    def incarnation(self) -> Incarnation:
        """The name of this life of the engine."""
        return self._options.incarnation

    async def start(self) -> EngineReady:
        """Start the host and wait until its engine is ready.

        Raises:
            EngineDead: it failed, or was not ready in time; no process is left.
        """
        if self._process is not None or self._dead is not None:
            raise EngineDead("an incarnation starts once")
        self._ready = asyncio.get_running_loop().create_future()
        started = False
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._launch()
                ready = await self._ready
            started = True
        except TimeoutError as error:
            text = f"the engine was not ready within {self._options.start_timeout_s:g} s"
            raise EngineDead(text) from error
        finally:
            if not started:
                self._die("the engine did not start")
                await self._end(0.0)
        return ready

    def run(self, job: Job) -> OutputStream:
        """Send a job to the host; outputs come as the port promises."""
        channel = self._alive()
        stream = OutputStream()
        if job.job in self._streams:
            stream.push(_failed(job.job, "job id is live"))
            return stream
        try:
            channel.send(job)
        except FrameTooLarge as error:
            stream.push(_failed(job.job, str(error)))
            return stream
        self._streams[job.job] = stream
        return stream

    async def abort(self, job: JobId) -> None:
        """Tell the host to stop a job."""
        channel = self._alive()
        if job in self._streams:
            channel.send(AbortJob(job=job))

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Have the host measure the way to a prefill engine."""
        channel = self._alive()
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[PairProbe] = asyncio.get_running_loop().create_future()
        self._probes[number] = answer
        channel.send(ProbePeer(number=number, source=source))
        try:
            async with asyncio.timeout(_PROBE_S):
                return await answer
        except TimeoutError:
            detail = f"the engine did not answer a probe within {_PROBE_S:g} s"
            return PairProbe(code=ErrorCode.DEADLINE, detail=detail)
        finally:
            del self._probes[number]

    def load(self) -> EngineLoad:
        """Return the newest figures, with their age."""
        age = self._clock.monotonic() - self._load_at if self._load_at else 0.0
        return msgspec.structs.replace(self._load, age_s=self._load.age_s + age)

    async def wait_dead(self) -> str:
        """Wait until the host is gone; return why."""
        await self._gone.wait()
        return self._dead or ""

    async def stop(self) -> None:
        """End the host, in order if it can, and wait until its process group is gone."""
        patience = 0.0
        self._told = self._told or "stopped"
        if self._dead is None and self._channel is not None:
            self._channel.send(StopHost())
            patience = _STOP_S
        await self._end(patience)
        self._die("stopped")

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await _spawn_host(self._options, theirs)
        self._channel = await open_service_end(ours)
        reader = self._tasks.spawn(self._read(self._channel), name="engine host reader")
        self._tasks.spawn(self._reap(self._process, reader), name="engine host exit")

    async def _reap(self, process: asyncio.subprocess.Process, reader: asyncio.Task[Any]) -> None:
        """Wait for the host's exit, which may come while a child of it keeps the socket open."""
        await process.wait()
        self._exited.set()
        await asyncio.wait({reader}, timeout=_LAST_WORDS_S)
        self._die(self._told or _exit_reason(process.returncode))

    async def _read(self, channel: ServiceEnd) -> None:
        reason = ""
        channel.hand_on(self._take)
        try:
            while True:
                # Messages are taken where they are read: this waits for the end.
                await channel.receive()
        except ChannelClosed:
            reason = await self._why()
        except ProtocolError as error:
            reason = f"the engine host sent something else: {error}"
        finally:
            self._die(reason or "nobody listens to the engine host any more")

    def _take(self, messages: list[FromHost]) -> None:
        for message in messages:
            if isinstance(message, StepTokens):
                self._take_step(message)
            elif isinstance(message, JobTokens):
                stream = self._streams.get(message.job)
                if stream is not None:
                    stream.push(message)
            else:
                self._hear(message)

    def _take_step(self, step: StepTokens) -> None:
        streams = self._streams
        for job, ids, text in zip(step.jobs, step.ids, step.texts, strict=True):
            stream = streams.get(job)
            if stream is None:
                continue
            plain = stream.plain
            if plain is not None:
                plain(ids, text)
            else:
                stream.push(JobTokens(job=job, ids=ids, text=text))

    def _hear(self, message: _NoTokens) -> None:
        match message:
            case JobFinished() | JobFailed():
                stream = self._streams.pop(message.job, None)
                if stream is not None:
                    stream.push(message)
            case PeerProbed():
                _settle(self._probes.get(message.number), message.found)
            case EngineLoad():
                self._load, self._load_at = message, self._clock.monotonic()
            case EngineReady():
                _settle(self._ready, message)
            case HostProgress():
                self._progress(message.text)
            case HostFailed():
                self._told = message.detail

    def _progress(self, text: str) -> None:
        if self._on_progress is not None:
            self._on_progress(text)
        else:
            get_logger().info("engine host progress", incarnation=self.incarnation, text=text)

    def _alive(self) -> ServiceEnd:
        if self._dead is not None:
            raise EngineDead(self._dead)
        if self._channel is None or self._ready is None or not self._ready.done():
            raise EngineDead("the engine has not started")
        return self._channel

    async def _why(self) -> str:
        if not self._told:
            await self._wait_exit(_REASON_S)
        code = None if self._process is None else self._process.returncode
        return self._told or _exit_reason(code)

    def _die(self, reason: str) -> None:
        if self._dead is not None:
            return
        self._dead = reason
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(EngineDead(reason))
        for answer in self._probes.values():
            if not answer.done():
                answer.set_exception(EngineDead(reason))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineDead(reason))
            self._ready.exception()  # it may be that nobody waits for it any more
        self._load, self._load_at = EngineLoad(), 0.0
        self._kill()
        self._gone.set()

    def _kill(self) -> None:
        """Kill what is left of the host's process group."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # all of it is gone
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self, patience_s: float) -> None:
        """Wait for the host's exit, then kill and wait for what is left of its group."""
        if self._process is None:
            return
        try:
            await self._wait_exit(patience_s)
            self._kill()
            deadline = self._clock.monotonic() + _REAP_S
            while self._clock.monotonic() < deadline and (
                not self._exited.is_set() or _group_lives(self._process.pid)
            ):
                await self._clock.sleep(_POLL_S)
        finally:
            if self._channel is not None:
                self._channel.close()

    async def _wait_exit(self, within_s: float) -> None:
        with suppress(TimeoutError):  # the caller acts on what it finds then
            async with asyncio.timeout(within_s):
                await self._exited.wait()


def _settle(answer: asyncio.Future[Answer] | None, value: Answer) -> None:
    if answer is not None and not answer.done():
        answer.set_result(value)


async def _spawn_host(options: HostOptions, sock: socket.socket) -> asyncio.subprocess.Process:
    log: int | None = None
    if options.log_path:
        log = os.open(options.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "libs.engine.host",
            f"--fd={sock.fileno()}",
            f"--parent={os.getpid()}",
            f"--options={options.to_json()}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(sock.fileno(),),
            start_new_session=True,
            env=_environment(),
        )
    finally:
        if log is not None:
            os.close(log)


def _environment() -> dict[str, str]:
    """Return this process' environment, with these rooms on the path and one thread a library."""
    environment = dict.fromkeys(_ONE_THREAD, "1") | dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else root
    return environment


def _exit_reason(code: int | None) -> str:
    if code is None:
        return "the engine host closed its socket"
    if code < 0:
        return f"the engine host was killed by {signal.Signals(-code).name}"
    return f"the engine host exited with status {code}"


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    # The dead hold nothing; whoever adopted them may be slow to take note of it.
    numbered = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return any(_runs_in(group, entry) for entry in numbered)


def _runs_in(group: int, process: Path) -> bool:
    try:
        text = (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, _, its_group, *_ = text.rpartition(")")[2].split()
    return int(its_group) == group and state not in "ZX"


def _failed(job: JobId, detail: str) -> JobFailed:
    return JobFailed(job=job, code=ErrorCode.ENGINE_ERROR, detail=detail)
