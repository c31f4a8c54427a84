"""A host's serving: jobs to the engine, outputs back, and no job that ends in silence."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from libs.engine.api import EngineDead
from libs.engine.channel import open_host_end, open_service_end
from libs.engine.serve import Ended, Serving
from libs.engine.stream import OutputStream
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import (
    AbortJob,
    EngineLoad,
    EngineReady,
    HostFailed,
    HostProgress,
    JobFailed,
    JobFinished,
    JobTokens,
    StepTokens,
    StopHost,
)
from tests.support.engines import make_job
from tests.support.records import card_of

CARD = card_of()


inboxes = {}
"""What was received and not asked for yet, by channel."""


class Engine:
    """Does what the test says."""

    def __init__(self):
        self.streams, self.aborted, self.problem = {}, [], None
        self.dead = asyncio.Event()

    async def start(self):
        return EngineReady(
            card=CARD, address=None, slots=1, kv_total_tokens=1, max_request_tokens=1
        )

    def run(self, job):
        if self.problem is not None:
            raise self.problem
        stream = self.streams[job.job] = OutputStream()
        return stream

    async def abort(self, job):
        self.aborted.append(job)

    def load(self):
        return EngineLoad(running=len(self.streams))

    async def wait_dead(self):
        await self.dead.wait()
        return "it died"

    async def stop(self):
        self.dead.set()


@asynccontextmanager
async def served():
    """An engine, the service's end of its channel, and how serving ends."""
    ours, theirs = socket.socketpair()
    engine, service, host = Engine(), await open_service_end(ours), await open_host_end(theirs)
    inboxes[service] = []
    serving = asyncio.ensure_future(Serving(engine, stop_s=1, orphan_stop_s=1).run(host))
    while not isinstance(await told(service, EngineReady, HostProgress), EngineReady):
        pass
    yield engine, service, serving
    del inboxes[service]
    service.close()
    await serving
    host.close()


async def told(service, *kinds):
    """Return the next message of these kinds."""
    found = inboxes[service]
    async with asyncio.timeout(5):
        while True:
            while found:
                message = found.pop(0)
                if isinstance(message, kinds):
                    return message
            found += await service.receive()


ENDS = (JobFinished, JobFailed)


async def started(engine, service, job):
    """Send a job; return its stream."""
    service.send(job)
    while job.job not in engine.streams:
        await asyncio.sleep(0)
    return engine.streams[job.job]


async def test_outputs_leave_in_order_and_the_load_before_the_end():
    """Tokens, then the figures without the job, then its end."""
    async with served() as (engine, service, _):
        job = make_job(1, [1])
        stream = await started(engine, service, job)
        stream.push(JobTokens(job=job.job, ids=b"\1\0\0\0", text="a"))
        assert (await told(service, StepTokens)).texts == ("a",)
        engine.streams.clear()
        stream.push(JobFinished(job=job.job, finish=FinishReason.STOP, prompt_tokens=1))
        assert (await told(service, EngineLoad)).running == 0
        assert isinstance(await told(service, *ENDS), JobFinished)
        again = await started(engine, service, job)
        again.push(JobFailed(job=job.job, code=ErrorCode.CANCELLED))
        assert (await told(service, *ENDS)).code is ErrorCode.CANCELLED


async def test_a_live_id_is_refused():
    """The second run fails, and the engine does not hear of it."""
    async with served() as (engine, service, _):
        job = make_job(1, [1])
        stream = await started(engine, service, job)
        service.send(job)
        assert (await told(service, *ENDS)).detail == "job id is live"
        assert engine.streams == {job.job: stream}


async def test_an_engine_that_fails_at_a_job_fails_only_that():
    """An exception becomes the end of the job, the engine is told to stop it, others go on."""
    async with served() as (engine, service, _):
        engine.problem = ZeroDivisionError("odd")
        broken = make_job(1, [1])
        service.send(broken)
        failed = await told(service, *ENDS)
        assert (failed.job, failed.detail) == (broken.job, "ZeroDivisionError: odd")
        engine.problem = None
        stream = await started(engine, service, broken)
        assert engine.aborted == [broken.job]
        stream.push(JobFinished(job=broken.job, finish=FinishReason.STOP, prompt_tokens=1))
        assert isinstance(await told(service, *ENDS), JobFinished)


async def test_an_end_that_fits_no_frame_is_told_as_a_failure():
    """No job ends in silence, however much was held back until its end."""
    async with served() as (engine, service, _):
        job = make_job(1, [1])
        stream = await started(engine, service, job)
        text = "x" * (64 << 20)
        end = JobFinished(job=job.job, finish=FinishReason.STOP, prompt_tokens=1, text=text)
        stream.push(end)
        failed = await told(service, *ENDS)
        assert failed.detail.startswith("FrameTooLarge")


async def test_a_dead_engine_is_told_once():
    """Jobs for it say nothing of their own: the end of the host does."""
    async with served() as (engine, service, serving):
        engine.problem = EngineDead("gone")
        service.send(make_job(1, [1]))
        await asyncio.sleep(0.01)
        engine.dead.set()
        assert (await told(service, HostFailed, *ENDS)).detail == "it died"
        assert await serving is Ended.FAILED


@pytest.mark.parametrize("orderly", [True, False])
async def test_serving_ends_with_the_service(orderly):
    """A stop is obeyed, with nothing begun after it; a service that is gone is told apart."""
    async with served() as (engine, service, serving):
        job = make_job(1, [1])
        await started(engine, service, job)
        service.send(AbortJob(job=job.job))
        if orderly:
            service.send(StopHost())
            service.send(make_job(2, [1]))
        else:
            service.close()
        assert await serving is (Ended.STOPPED if orderly else Ended.ORPHANED)
        assert list(engine.streams) == [job.job]
        assert engine.aborted == [job.job]
