"""Engine hosts as real processes, with real UCX between them."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from libs.clock import SystemClock
from libs.engine.api import EngineDead
from libs.engine.process import HostedEngine
from libs.engine.script.settings import Action, Fault, Phase, Profile, ScriptOptions
from libs.lifecycle import Tasks
from proto.errors import ErrorCode
from proto.host import JobFailed, JobFinished, JobKind
from proto.kv import Lane
from proto.workers import Role
from tests.support.engines import collect, expected, host_options, make_job, prompt_of

pytestmark = pytest.mark.integration

PREFILL, DECODE = JobKind.PREFILL, JobKind.DECODE
SLOW = ScriptOptions(profile=Profile(step_s=0.005, prefill_token_s=0.0005, chunk_tokens=32))


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition, seconds=5.0):
    """Wait for a state."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def hosts(*options):
    """Started hosts; at the end no process of theirs may be left."""
    clock = SystemClock()
    async with Tasks() as tasks:
        engines = [HostedEngine(each, clock, tasks) for each in options]
        readies = await asyncio.gather(*(engine.start() for engine in engines))
        try:
            yield engines, readies
        finally:
            await asyncio.gather(*(engine.stop() for engine in engines))
            assert not any(alive(pid) for ready in readies for pid in ready.pids)


def pair_options(**changes):
    """A prefill and a decode engine."""
    return (
        host_options(Role.PREFILL, name=1, **changes),
        host_options(Role.DECODE, name=2, **changes),
    )


def request(p, d, ready, number, ids, **kwargs):
    """Start a request on both hosts; return (decode's, prefill's) outputs."""
    target = d.run(make_job(number, ids, kind=DECODE, source=ready.address, **kwargs))
    source = p.run(make_job(number, ids, kind=PREFILL, **kwargs))
    return collect(target), collect(source)


async def test_a_host_runs_an_aggregated_engine():
    """A job through a host gives the reference answer, and the load returns to zero with it."""
    options = host_options()
    ids = prompt_of(1, 300)
    progress = []
    async with Tasks() as tasks:
        engine = HostedEngine(options, SystemClock(), tasks, on_progress=progress.append)
        ready = await engine.start()
        answer = await collect(engine.run(make_job(1, ids, max_tokens=50)))
        load = engine.load()
        await engine.stop()
    assert answer.ids == expected(options, ids, 50)
    assert (load.running, load.waiting, load.kv_used_tokens) == (0, 0, 0)
    assert load.kv_total_tokens == ready.kv_total_tokens == 4096
    assert ready.address is None
    assert progress


@pytest.mark.parametrize("lanes", [(Lane.CMA,), (Lane.SYSV, Lane.TCP), (Lane.TCP,)])
@pytest.mark.parametrize("page_size", [1, 16])
async def test_a_pair_answers_like_one_engine_over_ucx(lanes, page_size):
    """Many requests at once over real UCX give the reference answers and the lane's name."""
    changes = {"lanes": lanes, "page_size": page_size, "script": SLOW, "slots": 16}
    lengths = [1, 5, 31, 32, 33, 100, 250, 17]
    async with hosts(*pair_options(**changes)) as ((p, d), (ready, _)):
        work = [
            request(p, d, ready, n, prompt_of(n, length), max_tokens=20)
            for n, length in enumerate(lengths, 1)
        ]
        answers = [await asyncio.gather(*sides) for sides in work]
        for engine in (p, d):
            await until(lambda engine=engine: engine.load().open_rooms == 0, 2)
            assert engine.load().kv_used_tokens == 0
    for n, (decode, prefill) in enumerate(answers, 1):
        assert decode.ids == expected(host_options(), prompt_of(n, lengths[n - 1]), 20)
        for report in (decode.end.transfer, prefill.end.transfer):
            assert report.lane is lanes[0]
            assert report.moved_bytes == report.expected_bytes > 0


async def test_an_abort_in_transfer_frees_both_hosts():
    """Aborting both sides while chunks move frees all memory, and the next request is right."""
    fault = Fault(when=Phase.TRANSFER, action=Action.SLOW, seconds=0.05)
    slow = ScriptOptions(profile=SLOW.profile, faults=(fault,))
    prefill, decode = pair_options(script=SLOW)
    prefill = host_options(Role.PREFILL, name=1, script=slow)
    async with hosts(prefill, decode) as ((p, d), (ready, _)):
        sides = request(p, d, ready, 1, prompt_of(1, 1000))
        await until(lambda: p.load().kv_used_tokens and d.load().kv_used_tokens)
        await asyncio.sleep(0.1)
        job = make_job(1, []).job
        await asyncio.gather(p.abort(job), d.abort(job))
        ends = [answer.end for answer in await asyncio.gather(*sides)]
        assert all(isinstance(end, JobFailed) for end in ends)
        assert d.load().kv_used_tokens == p.load().kv_used_tokens == 0
        answer, _ = await asyncio.gather(*request(p, d, ready, 2, prompt_of(2, 40)))
    assert answer.ids == expected(host_options(), prompt_of(2, 40), 16)


async def test_a_killed_host_ends_its_runs_at_once():
    """SIGKILL of the host is EngineDead for every run, for `abort` and for `wait_dead`."""
    async with hosts(host_options(script=SLOW)) as ((engine,), (ready,)):
        runs = [engine.run(make_job(n, prompt_of(n, 20), max_tokens=1000)) for n in (1, 2, 3)]
        await asyncio.gather(*(anext(run) for run in runs))
        os.kill(ready.pids[0], signal.SIGKILL)
        async with asyncio.timeout(2):
            for run in runs:
                with pytest.raises(EngineDead, match="SIGKILL"):
                    await collect(run)
            assert "SIGKILL" in await engine.wait_dead()
        with pytest.raises(EngineDead):
            await engine.abort(make_job(1, []).job)
        with pytest.raises(EngineDead):
            engine.run(make_job(4, prompt_of(1, 5)))


async def test_decode_survives_the_death_of_prefill():
    """A prefill host that dies fails the rooms it owes; decode frees them and goes on."""
    crash = Fault(when=Phase.TRANSFER, action=Action.CRASH, after_tokens=64)
    prefill, decode = pair_options(script=SLOW)
    prefill = host_options(
        Role.PREFILL, name=1, script=ScriptOptions(profile=SLOW.profile, faults=(crash,))
    )
    async with hosts(prefill, decode) as ((p, d), (ready, _)):
        target, source = request(p, d, ready, 1, prompt_of(1, 400))
        with pytest.raises(EngineDead):
            await source
        async with asyncio.timeout(5):
            failed = await target
        assert isinstance(failed.end, JobFailed)
        assert failed.end.code in {ErrorCode.KV_TRANSFER_FAILED, ErrorCode.PREFILL_LOST}
        assert d.load().kv_used_tokens == 0
        alone = make_job(2, prompt_of(2, 9))
        assert (await collect(d.run(alone))).ids == expected(host_options(), prompt_of(2, 9), 16)
        async with hosts(host_options(Role.PREFILL, name=3, script=SLOW)) as ((q,), (again,)):
            ids = prompt_of(3, 60)
            answer, _ = await asyncio.gather(*request(q, d, again, 3, ids))
            assert answer.ids == expected(host_options(), ids, 16)


SERVICE = """
import asyncio, sys
from libs.clock import SystemClock
from libs.engine.options import HostOptions
from libs.engine.process import HostedEngine
from libs.lifecycle import Tasks

async def main():
    async with Tasks() as tasks:
        engine = HostedEngine(HostOptions.from_json(sys.argv[1]), SystemClock(), tasks,
                              on_progress=lambda text: None)
        ready = await engine.start()
        print(ready.pids[0], flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_host_does_not_outlive_its_service(how):
    """When the service dies, its host is gone at once."""
    options = host_options(Role.PREFILL, script=SLOW)
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVICE, options.to_json(), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(20):
            pid = int(await service.stdout.readline())
        assert alive(pid)
        service.send_signal(how)
        await service.wait()
        await until(lambda: not alive(pid), 3)
    finally:
        if service.returncode is None:
            service.kill()
            await service.wait()


async def test_a_closed_socket_ends_the_host():
    """A service that lives but has let go of the socket counts as gone."""
    async with Tasks() as tasks:
        engine = HostedEngine(host_options(Role.PREFILL), SystemClock(), tasks)
        ready = await engine.start()
        engine._channel.close()
        await until(lambda: not alive(ready.pids[0]), 3)
        await engine.wait_dead()
        await engine.stop()


@pytest.mark.parametrize(
    ("faults", "changes", "reason"),
    [
        ((Fault(when=Phase.START, action=Action.ERROR),), {}, "scripted error"),
        ((Fault(when=Phase.START, action=Action.CRASH),), {}, "SIGKILL"),
        (
            (Fault(when=Phase.START, action=Action.STALL),),
            {"start_timeout_s": 1.5},
            r"within 1\.5 s",
        ),
        ((), {"model_path": "/nonexistent"}, r"tokenizer\.json"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(faults, changes, reason):
    """An engine that errs, crashes, hangs or cannot be made is EngineDead with a reason."""
    options = host_options(script=ScriptOptions(faults=faults), **changes)
    async with Tasks() as tasks:
        engine = HostedEngine(options, SystemClock(), tasks)
        with pytest.raises(EngineDead, match=reason):
            await engine.start()
        pid = engine._process.pid
        await until(lambda: not alive(pid), 1)
        await engine.wait_dead()
        await engine.stop()


async def test_a_cancelled_start_leaves_no_process():
    """A service that stops while its engine loads takes the host with it."""
    stall = ScriptOptions(faults=(Fault(when=Phase.START, action=Action.STALL),))
    async with Tasks() as tasks:
        engine = HostedEngine(host_options(script=stall), SystemClock(), tasks)
        starting = asyncio.ensure_future(engine.start())
        await until(lambda: engine._process is not None)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        assert not alive(engine._process.pid)


async def test_a_host_that_hangs_is_killed(monkeypatch):
    """`stop` does not wait for a host that does not answer."""
    monkeypatch.setattr("libs.engine.process._STOP_S", 0.3)
    async with hosts(host_options()) as ((engine,), (ready,)):
        os.kill(ready.pids[0], signal.SIGSTOP)
        run = engine.run(make_job(1, prompt_of(1, 9)))
        async with asyncio.timeout(3):
            await engine.stop()
        assert not alive(ready.pids[0])
        with pytest.raises(EngineDead, match="stopped"):
            await collect(run)


async def test_output_of_the_host_goes_to_its_log(tmp_path):
    """What the host prints lands in the log file that the options name."""
    log = tmp_path / "host.log"
    async with hosts(host_options(log_path=str(log))) as ((engine,), (ready,)):
        os.kill(ready.pids[0], signal.SIGABRT)
        await engine.wait_dead()
    assert "Fatal Python error" in log.read_text()


async def test_ready_jobs_finish_on_a_host_in_order():
    """A second run of a live id fails, the first one finishes."""
    async with hosts(host_options(script=SLOW)) as ((engine,), _):
        job = make_job(1, prompt_of(1, 9))
        first, second = engine.run(job), engine.run(job)
        assert isinstance((await collect(second)).end, JobFailed)
        assert isinstance((await collect(first)).end, JobFinished)


def living(group: int) -> Iterator[int]:
    """Go through what runs in a process group; the dead may wait for whoever adopted them."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                yield process.pid


async def test_an_exit_is_seen_though_a_child_keeps_the_socket(monkeypatch):
    """A host that exits while a child of it holds the socket is dead, and the child is killed."""

    async def spawn(options, sock):
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "sleep 60 & exit 3", pass_fds=(sock.fileno(),), start_new_session=True
        )

    monkeypatch.setattr("libs.engine.process._spawn_host", spawn)
    async with Tasks() as tasks:
        engine = HostedEngine(host_options(), SystemClock(), tasks)
        async with asyncio.timeout(5):
            with pytest.raises(EngineDead, match="status 3"):
                await engine.start()
        assert list(living(engine._process.pid)) == []


def test_a_service_side_engine_needs_no_heavy_imports():
    """The service's half imports neither torch, ucxx, numpy nor a tokenizer."""
    code = (
        "import sys, libs.engine.process; "
        "print([name for name in ('torch', 'ucxx', 'numpy', 'tokenizers', 'sglang') "
        "if name in sys.modules])"
    )
    done = subprocess.run(  # the answer must come from a fresh interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("seed", [1, 2])
async def test_aborts_at_random_moments_leave_no_trace(seed):
    """Under load with a third of the jobs aborted, the others are right and nothing stays held."""
    dice = random.Random(seed)
    options = pair_options(script=SLOW, slots=6, kv_tokens=1024)

    async def one(p, d, ready, number):
        ids = prompt_of(number, dice.randint(1, 150))
        await asyncio.sleep(dice.random() * 0.3)
        target, source = request(p, d, ready, number, ids, max_tokens=12)
        if dice.random() > 1 / 3:
            return ids, await asyncio.gather(target, source)
        both = asyncio.gather(target, source)
        await asyncio.sleep(dice.random() * 0.4)
        job = make_job(number, []).job
        await asyncio.gather(p.abort(job), d.abort(job))
        return ids, await both

    async with hosts(*options) as ((p, d), (ready, _)):
        async with asyncio.timeout(40):
            results = await asyncio.gather(*(one(p, d, ready, n) for n in range(1, 61)))
        for engine in (p, d):
            await until(lambda engine=engine: engine.load().open_rooms == 0, 3)
            load = engine.load()
            assert (load.running, load.waiting, load.kv_used_tokens) == (0, 0, 0)
    finished = 0
    for ids, (decode, _) in results:
        right = expected(host_options(), ids, 12)
        assert decode.ids == right[: len(decode.ids)]
        finished += isinstance(decode.end, JobFinished)
    assert 20 <= finished < 60
