from __future__ import annotations

import asyncio
import random
import struct

import msgspec
import pytest

from libs.engine import EngineDead
from proto.errors import ErrorCode
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import Incarnation, JobId, Room
from proto.sampling import SamplingParams
from tests.sim.kernel import SimLoop, Trace
from tests.sim.ports import EngineHooks, EngineSettings, SimDataPlane, SimEngine, expected_answer
from tests.sim.ports.answers import text_of
from tests.sim.ports.memory import Memory


class Pair:
    """A prefill and a decode engine on one plane."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.trace = Trace(self.loop)
        self.plane = SimDataPlane(self.loop, random.Random(2), self.trace)
        self.ran: list[Job] = []
        self.prefill, self.decode = (
            SimEngine(
                loop=self.loop,
                plane=self.plane,
                name=name,
                incarnation=Incarnation(f"{name}-inc"),
                settings=EngineSettings(),
                hooks=EngineHooks(began=self.ran.append),
            )
            for name in ("prefill", "decode")
        )
        self.source = None

    async def start(self) -> None:
        """Load both."""
        self.source = (await self.prefill.start()).address
        await self.decode.start()

    def job(self, kind: JobKind, *, name: str = "j1", room: int = 5, tokens: int = 37) -> Job:
        """Make a job."""
        return Job(
            job=JobId(name),
            kind=kind,
            input_ids=_ids(tokens),
            sampling=SamplingParams(max_tokens=9, temperature=0.0),
            room=Room(room),
            source=self.source if kind is JobKind.DECODE else None,
        )

    def idle(self) -> bool:
        """Whether both hold nothing."""
        return not any(e.memory.used or e.jobs for e in (self.prefill, self.decode))

    def run(self, work):
        """Run a test body."""
        try:
            result = self.loop.run(work)
        finally:
            self.loop.close()
        assert self.trace.violations == []
        return result


def _ids(tokens: int) -> bytes:
    return struct.pack(f"<{tokens}I", *range(tokens))


async def _all(engine: SimEngine, job: Job) -> list:
    return [output async for output in engine.run(job)]


def _tokens(outputs: list) -> list[int]:
    return [struct.unpack("<I", o.ids)[0] for o in outputs if isinstance(o, JobTokens)]


@pytest.fixture
def pair():
    return Pair()


def test_a_transferred_answer_is_the_expected_one(pair):
    """Prefill, transfer and decode give the answer that the prompt asks for, and free all pages."""

    async def work():
        await pair.start()
        return await asyncio.gather(
            _all(pair.prefill, pair.job(JobKind.PREFILL)),
            _all(pair.decode, pair.job(JobKind.DECODE)),
        )

    sent, answered = pair.run(work())
    right, finish = expected_answer(_ids(37), 9)
    assert _tokens(answered) == right
    assert isinstance(sent[-1], JobFinished)
    assert answered[-1].finish is finish
    assert answered[-1].transfer.moved_bytes == answered[-1].transfer.expected_bytes > 0
    assert pair.idle()


@pytest.mark.parametrize("shown", [1, 2, 3, 4, 7])
def test_an_answer_goes_on_elsewhere(pair, shown):
    """Prompt and emitted tokens together continue as the first engine would have."""
    right, _ = expected_answer(_ids(37), 9, no_stop=True)

    async def work():
        await pair.start()
        job = msgspec.structs.replace(
            pair.job(JobKind.AGGREGATED),
            input_ids=_ids(37) + struct.pack(f"<{shown}I", *right[:shown]),
            sampling=SamplingParams(max_tokens=9 - shown, temperature=0.0, ignore_eos=True),
        )
        return _tokens(await _all(pair.decode, job))

    assert pair.run(work()) == right[shown:]


def test_all_text_has_come_at_the_end(pair):
    """Text is held back now and then, and never lost."""

    async def work():
        await pair.start()
        outputs = await _all(pair.decode, pair.job(JobKind.AGGREGATED, tokens=5))
        ids = b"".join(o.ids for o in outputs if isinstance(o, JobTokens))
        return text_of(ids), "".join(o.text for o in outputs if isinstance(o, JobTokens))

    whole, said = pair.run(work())
    assert said == whole != ""


def test_an_aggregated_answer_is_the_same(pair):
    """An engine that computes the prompt itself gives the same answer."""

    async def work():
        await pair.start()
        return await _all(pair.decode, pair.job(JobKind.AGGREGATED))

    assert _tokens(pair.run(work())) == expected_answer(_ids(37), 9)[0]


def test_the_wrong_prompt_shows_in_the_answer(pair):
    """KV of another prompt gives another answer."""

    async def work():
        await pair.start()
        _, answered = await asyncio.gather(
            _all(pair.prefill, pair.job(JobKind.PREFILL, tokens=38)),
            _all(pair.decode, pair.job(JobKind.DECODE, tokens=37)),
        )
        return _tokens(answered)

    assert pair.run(work()) != expected_answer(_ids(37), 9)[0]


@pytest.mark.parametrize("side", [JobKind.PREFILL, JobKind.DECODE])
@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.06])
def test_an_abort_ends_both_sides(pair, side, after_s):
    """An abort at any time ends the job, its peer fails, and all pages are free."""

    async def work():
        await pair.start()
        runs = [
            asyncio.ensure_future(_all(pair.prefill, pair.job(JobKind.PREFILL, tokens=300))),
            asyncio.ensure_future(_all(pair.decode, pair.job(JobKind.DECODE, tokens=300))),
        ]
        await asyncio.sleep(after_s + 0.001)
        engine = pair.prefill if side is JobKind.PREFILL else pair.decode
        await engine.abort(JobId("j1"))
        return [(await run)[-1] for run in runs]

    sent, answered = pair.run(work())
    own, other = (sent, answered) if side is JobKind.PREFILL else (answered, sent)
    assert isinstance(own, JobFailed)
    assert own.code is ErrorCode.CANCELLED
    assert isinstance(other, JobFailed)
    assert other.code is ErrorCode.KV_TRANSFER_FAILED
    assert pair.idle()


def test_a_dead_engine_is_told_to_all_and_fails_its_peer(pair):
    """A crash raises EngineDead in each run; the peer's transfer fails a little later."""

    async def work():
        await pair.start()
        dying = asyncio.ensure_future(_all(pair.prefill, pair.job(JobKind.PREFILL, tokens=300)))
        left = asyncio.ensure_future(_all(pair.decode, pair.job(JobKind.DECODE, tokens=300)))
        await asyncio.sleep(0.05)
        pair.prefill.crash("test")
        with pytest.raises(EngineDead):
            await dying
        with pytest.raises(EngineDead):
            await pair.prefill.abort(JobId("j1"))
        assert await pair.prefill.wait_dead() == "test"
        return (await left)[-1]

    last = pair.run(work())
    assert last.code is ErrorCode.KV_TRANSFER_FAILED
    assert pair.idle()


def test_a_cut_between_two_engines_fails_both_sides(pair):
    """Cut workers notice within seconds, and free what they hold."""

    async def work():
        await pair.start()
        runs = [
            asyncio.ensure_future(_all(pair.prefill, pair.job(JobKind.PREFILL, tokens=300))),
            asyncio.ensure_future(_all(pair.decode, pair.job(JobKind.DECODE, tokens=300))),
        ]
        await asyncio.sleep(0.05)
        pair.plane.cut("prefill", "decode")
        return [(await run)[-1] for run in runs]

    sent, answered = pair.run(work())
    assert sent.code is answered.code is ErrorCode.KV_TRANSFER_FAILED
    assert pair.idle()


def test_a_second_run_of_a_live_job_fails(pair):
    """One job id runs once at a time."""

    async def work():
        await pair.start()
        first = asyncio.ensure_future(_all(pair.decode, pair.job(JobKind.AGGREGATED)))
        await asyncio.sleep(0.01)
        second = await _all(pair.decode, pair.job(JobKind.AGGREGATED))
        return second, await first

    second, first = pair.run(work())
    assert isinstance(second[0], JobFailed)
    assert isinstance(first[-1], JobFinished)


def test_a_room_that_nobody_offers_fails(pair):
    """A fetch waits for its offer for so long and no longer."""

    async def work():
        await pair.start()
        return (await _all(pair.decode, pair.job(JobKind.DECODE)))[-1]

    assert pair.run(work()).code is ErrorCode.KV_TRANSFER_FAILED
    assert pair.idle()


def test_a_write_to_a_foreign_page_is_a_violation(pair):
    """Memory tells when a job writes a page that is not its own."""
    memory = Memory(8, pair.trace, "m")
    assert memory.allocate(JobId("a"), 2)
    memory.write(JobId("a"), 1, 42)
    assert memory.read(JobId("a"), 1, 1) == [42]
    memory.free(JobId("a"))
    memory.write(JobId("a"), 1, 43)
    assert [violation.name for violation in pair.trace.violations] == ["I5"]
    pair.loop.close()
