"""The product's engine: SGLang in this process, and its scheduler and detokenizer below it.

SGLang wants the main thread and a loop of its own, so `build` starts it before any loop runs and
returns the loop for the host to use.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any

from libs.engine.api import Engine, EngineDead
from libs.engine.options import HostOptions
from libs.engine.parse import AnswerShaper, UnreadableTools
from libs.engine.sgl.children import Children
from libs.engine.sgl.jobs import request_of
from libs.engine.sgl.live import LiveJob
from libs.engine.sgl.start import Started, start
from libs.engine.stream import OutputStream
from proto.backend import RoomClosed
from proto.errors import ErrorCode
from proto.host import EngineLoad, EngineReady, Job, JobFailed, JobKind
from proto.ids import Incarnation, JobId, Room
from proto.kv import PeerAddress
from proto.pairs import PairProbe

__all__ = ["SglangEngine", "build"]

_ABORT_AGAIN_S = 0.005
_ABORT_SLOWEST_S = 0.25
_ABORT_TRIES = 50


class SglangEngine:
    """The engine port over a started SGLang. Use it on its loop only."""

    def __init__(self, options: HostOptions, started: Started) -> None:
        self._options = options
        self._started = started
        self._manager: Any = started.engine.tokenizer_manager
        self._loop: asyncio.AbstractEventLoop = started.engine.loop
        self._children = Children(tuple(started.engine.get_all_child_pids()))
        self._live: dict[JobId, LiveJob] = {}
        self._rooms: dict[Room, LiveJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: asyncio.Future[str] = self._loop.create_future()

    @property
    def incarnation(self) -> Incarnation:
        """The name of this life of the engine."""
        return self._options.incarnation

    def take_over(self) -> None:
        """Let this object, not SGLang, decide what the death of a process means."""
        self._manager.signal_handler_class = partial(_Signals, self)
        self._manager.auto_create_handle_loop()
        self._children.watch(self._loop, self._child_died)
        self._started.link.serve(self._loop, self._room_closed)

    async def start(self) -> EngineReady:
        """Return what the engine is; `build` has started it.

        Raises:
            EngineDead: it has died since.
        """
        self._raise_if_dead()
        started = self._started
        opened = started.link.opened
        return EngineReady(
            card=started.card,
            address=opened.address if opened else None,
            slots=started.slots,
            kv_total_tokens=started.kv_total_tokens,
            max_request_tokens=started.max_request_tokens,
            pids=(os.getpid(), *self._children.pids),
            features=started.features,
        )

    def run(self, job: Job) -> OutputStream:
        """Compute a job; SGLang has it before this returns for the second time.

        Raises:
            EngineDead: there is nobody to compute it.
        """
        self._raise_if_dead()
        try:
            parser = None if job.kind is JobKind.PREFILL else self._started.parsers.parser(job)
        except UnreadableTools as error:
            return _refused(job, ErrorCode.INVALID_VALUE, str(error))
        stream = OutputStream(AnswerShaper(parser) if parser is not None else None)
        refusal = self._refusal(job)
        if refusal is not None:
            stream.push(refusal)
            return stream
        opened = self._started.link.opened
        live = LiveJob(
            job,
            stream,
            self._started.card,
            row_bytes=opened.row_bytes if opened else 0,
            arrived=time.monotonic(),
        )
        self._live[job.job] = live
        if job.kind is not JobKind.AGGREGATED:
            self._rooms[job.room] = live
        self._spawn(self._drive(live), f"job {job.job}")
        return stream

    async def abort(self, job: JobId) -> None:
        """Stop a job wherever it is; harmless if unknown.

        Raises:
            EngineDead: there is nobody to tell.
        """
        self._raise_if_dead()
        live = self._live.get(job)
        if live is not None and not live.cancelled:
            live.cancelled = True
            if live.check is not None:
                live.check.cancel()
            self._send_abort(job)
            self._spawn(self._abort_again(live), f"abort {job}")

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Have the data plane measure the way to a prefill engine.

        Raises:
            EngineDead: there is nobody to ask.
        """
        self._raise_if_dead()
        return await self._started.link.probe(source)

    def load(self) -> EngineLoad:
        """Return SGLang's newest figures."""
        link = self._started.link
        snapshots = self._manager.load_snapshot_reader.read_all()
        inflight = sum(
            one.disaggregation.prefill_inflight_queue_reqs
            for one in snapshots
            if one.disaggregation is not None
        )
        return EngineLoad(
            running=sum(one.num_running_reqs for one in snapshots) + inflight,
            waiting=sum(one.num_waiting_reqs for one in snapshots),
            kv_used_tokens=sum(one.num_used_tokens for one in snapshots),
            kv_total_tokens=self._started.kv_total_tokens,
            open_rooms=link.figures.open_rooms,
            dropped_chunks=link.figures.dropped_chunks,
            unshared_links=link.figures.unshared_links,
            age_s=max((max(0.0, time.time() - one.timestamp) for one in snapshots), default=0.0),
        )

    async def wait_dead(self) -> str:
        """Wait until this incarnation is gone; return why."""
        return await asyncio.shield(self._gone)

    async def stop(self) -> None:
        """End SGLang's processes."""
        self._die("stopped")
        # Kills and waits for whatever of its tree is left.
        await self._loop.run_in_executor(None, self._started.engine.shutdown)
        self._started.link.close()
        if self._started.guides is not None:
            self._started.guides.close()

    def _refusal(self, job: Job) -> JobFailed | None:
        if job.job in self._live:
            detail = "job id is live"
            return JobFailed(job=job.job, code=ErrorCode.ENGINE_ERROR, detail=detail)
        tokens = len(job.input_ids) // 4
        if not tokens or len(job.input_ids) % 4:
            return JobFailed(job=job.job, code=ErrorCode.INVALID_REQUEST, detail="no prompt")
        total = tokens if job.kind is JobKind.PREFILL else tokens + job.sampling.max_tokens
        most = self._started.max_request_tokens
        if total > most:
            detail = f"{total} tokens are needed and at most {most} fit"
            return JobFailed(job=job.job, code=ErrorCode.CONTEXT_LENGTH_EXCEEDED, detail=detail)
        return None

    async def _drive(self, live: LiveJob) -> None:
        try:
            if problem := await self._guide_problem(live):
                live.fail(ErrorCode.INVALID_VALUE, problem)
                return
            if live.cancelled:
                live.fail(ErrorCode.CANCELLED, "aborted")
                return
            marks = self._started.parsers.wants_marks(live.job)
            request = self._started.request_class(**request_of(live.job, marks=marks))
            async for item in self._manager.generate_request(request, None):
                if item["meta_info"]["finish_reason"] is not None or not live.moved:
                    # Nothing is said of KV whose bytes were not counted.
                    self._started.link.drain()
                if live.take(item):
                    return
            live.fail(ErrorCode.ENGINE_ERROR, "SGLang ended the request without a reason")
        except self._started.refusals as error:
            self._started.link.drain()
            live.fail(ErrorCode.INVALID_VALUE, str(error))
        finally:
            self._live.pop(live.job.job, None)
            self._rooms.pop(live.job.room, None)
            live.ended.set()

    async def _guide_problem(self, live: LiveJob) -> str:
        guide, check = live.job.sampling.guide, self._started.guides
        if guide is None:
            return ""
        if check is None:
            return "this engine takes no guides"
        live.check = self._loop.create_task(check.problem(guide))
        try:
            return await live.check
        except asyncio.CancelledError:
            if not live.cancelled:
                raise
            return ""
        finally:
            live.check = None

    def _send_abort(self, job: JobId) -> None:
        state = self._manager.rid_to_state.get(job)
        if state is not None:
            # SGLang sends one abort a request, and its scheduler forgets one that came too early.
            state.abort_sent = False
            self._manager.abort_request(rid=job)

    async def _abort_again(self, live: LiveJob) -> None:
        pause = _ABORT_AGAIN_S
        for _ in range(_ABORT_TRIES):
            try:
                async with asyncio.timeout(pause):
                    await live.ended.wait()
            except TimeoutError:
                self._send_abort(live.job.job)
                pause = min(2 * pause, _ABORT_SLOWEST_S)
            else:
                return

    def _room_closed(self, message: RoomClosed) -> None:
        live = self._rooms.get(message.room)
        if live is not None and not live.room_closed(message, time.monotonic()):
            self._send_abort(live.job.job)
            self._spawn(self._abort_again(live), f"abort {live.job.job}")

    def _child_died(self, pid: int) -> None:
        self._die(f"SGLang's process {pid} died")

    def child_failed(self) -> None:
        """Note that a process of SGLang asked for the end of all."""
        self._die("a process of SGLang failed; its log says why")

    def terminate(self) -> None:
        """Note that somebody asked this process to end."""
        self._die("terminated")

    def _die(self, reason: str) -> None:
        if self._gone.done():
            return
        self._gone.set_result(reason)
        if self._manager._subprocess_watchdog is not None:  # noqa: SLF001 - it would signal us
            self._manager._subprocess_watchdog._stop_event.set()  # noqa: SLF001 - `stop` blocks
        self._children.forget(self._loop)
        self._children.kill()
        for live in self._live.values():
            live.stream.fail(EngineDead(reason))
        for task in self._tasks:
            task.cancel()

    def _raise_if_dead(self) -> None:
        if self._gone.done():
            raise EngineDead(self._gone.result())

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._die(f"{task.get_name()} failed: {error!r}")


def _refused(job: Job, code: ErrorCode, detail: str) -> OutputStream:
    stream = OutputStream()
    stream.push(JobFailed(job=job.job, code=code, detail=detail))
    return stream


class _Signals:
    """What SGLang's main process does on signals; the names are SGLang's."""

    def __init__(self, engine: SglangEngine, manager: Any) -> None:
        self._engine = engine

    def sigterm_handler(self, signum: Any = None, frame: Any = None) -> None:
        self._engine.terminate()

    def running_phase_sigquit_handler(self, signum: Any = None, frame: Any = None) -> None:
        self._engine.child_failed()


def build(options: HostOptions) -> tuple[Engine, asyncio.AbstractEventLoop]:
    """Start SGLang in this process's main thread; return the engine and the loop to run it on.

    Raises:
        EngineDead: it could not start.
    """
    started = start(options)
    engine = SglangEngine(options, started)
    loop: asyncio.AbstractEventLoop = started.engine.loop

    async def take_over() -> None:
        engine.take_over()

    loop.run_until_complete(take_over())
    return engine, loop
