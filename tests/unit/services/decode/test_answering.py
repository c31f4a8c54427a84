"""An answer and its claim: nothing is said before it, nothing is lost, nothing stays held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from libs.bus.api import Bus, Endpoint
from libs.clock import SystemClock
from libs.engine import Engine, EngineDead
from libs.engine.stream import OutputStream
from libs.fleet import announcer
from libs.lifecycle import Tasks
from proto.control import Abort
from proto.decode import DecodeStart, Replay, Replayed, Reserve
from proto.errors import ErrorCode, PdbusError
from proto.events import Event, EventKind
from proto.gateway import AttemptFailed, FinishReason, StreamBatch, TokenChunk
from proto.host import EngineLoad, EngineReady, Job, JobFailed, JobFinished, JobTokens
from proto.ids import Incarnation, InstanceId, JobId, Nonce, RequestId, Room
from proto.kv import PeerAddress
from proto.ledger import Mode
from proto.prefill import ReplyTo
from proto.router import Claimed
from proto.sampling import SamplingParams
from proto.workers import WorkerState
from services.decode import DecodeService
from tests.support.records import card_of

RID = RequestId("01hf7yb2ny8wsyvtsy3bemvcp2")
REPLY = ReplyTo(gateway=InstanceId("g"), incarnation=Incarnation("1" * 16), nonce=Nonce("2" * 32))
CARD = card_of(context_tokens=64)


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is read from a disk, which a running loop must not wait for."""
    monkeypatch.setattr(announcer, "pdbus_version", lambda: "0.0.0")


class Quiet:
    """A subscription to nothing."""

    async def close(self) -> None:
        """End it."""


class Wire:
    """A bus whose claims the test settles."""

    connected, down_s = True, 0.0

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[Any], Any]] = {}
        self.said: list[Any] = []
        self.events: list[Event] = []
        self.claim: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()

    async def publish(self, subject: str, message: Any) -> None:
        """Remember what is said."""
        self.post(subject, message)

    def post(self, subject: str, message: Any) -> bool:
        """Remember what is said of attempts."""
        if ".tokens." in subject:
            items = message.items if isinstance(message, StreamBatch) else ((None, message),)
            self.said += [said for _, said in items]
        return True

    async def request(self, _subject: str, *_: Any, timeout_s: float) -> Claimed:
        """Wait for the test's word."""
        assert timeout_s > 0
        return await asyncio.shield(self.claim)

    async def subscribe(self, *_: Any) -> Quiet:
        """Hear nothing."""
        return Quiet()

    async def serve(self, endpoint: Endpoint) -> Quiet:
        """Let the test call a verb."""
        self.handlers[endpoint.name] = endpoint.handler
        return Quiet()

    def emit(self, event: Event) -> None:
        """Remember it."""
        self.events.append(event)

    async def call(self, verb: str, ask: Any) -> Any:
        """Call a verb."""
        answer = self.handlers[verb](ask)
        return await answer if isinstance(answer, Awaitable) else answer

    def why_ended(self) -> list[object]:
        """Return why leases ended."""
        return [e.data["why"] for e in self.events if e.kind is EventKind.LEASE_ENDED]


class Stub:
    """An engine whose outputs the test makes."""

    incarnation = Incarnation("3" * 16)

    def __init__(self) -> None:
        self.stream = OutputStream()
        self.aborted: list[JobId] = []
        self.gone = asyncio.Event()
        self.job: Job | None = None

    async def start(self) -> EngineReady:
        """Be ready."""
        return EngineReady(
            card=CARD, address=None, slots=4, kv_total_tokens=64, max_request_tokens=64
        )

    def run(self, job: Job) -> OutputStream:
        """Take the job."""
        self.job = job
        return self.stream

    async def abort(self, job: JobId) -> None:
        """End it as engines do."""
        self.aborted.append(job)
        self.stream.push(JobFailed(job=job, code=ErrorCode.CANCELLED, detail="aborted"))

    def load(self) -> EngineLoad:
        """Tell nothing."""
        return EngineLoad()

    async def wait_dead(self) -> str:
        """Live."""
        await self.gone.wait()
        return "gone"

    async def stop(self) -> None:
        """End."""
        self.gone.set()

    def say(self, *texts: str) -> None:
        """Give tokens."""
        for text in texts:
            self.stream.push(JobTokens(job=JobId("j"), ids=b"\1\0\0\0", text=text))

    def finish(self) -> None:
        """Give the end."""
        self.stream.push(
            JobFinished(job=JobId("j"), finish=FinishReason.STOP, prompt_tokens=1, text="!")
        )


def reserve_of(rid: RequestId = RID, within_ms: int = 5000) -> Reserve:
    """What holds a slot."""
    soon = SystemClock().unix_ms() + within_ms
    return Reserve(
        rid=rid, attempt=0, tokens=8, compat=CARD.compat, not_after_ms=soon, deadline_ms=soon
    )


def start_of() -> DecodeStart:
    """What uses it."""
    soon = SystemClock().unix_ms() + 5000
    return DecodeStart(
        rid=RID,
        attempt=0,
        mode=Mode.DISAGGREGATED,
        room=Room(7),
        input_ids=b"\1\0\0\0",
        sampling=SamplingParams(max_tokens=4),
        reply=REPLY,
        compat=CARD.compat,
        not_after_ms=soon,
        deadline_ms=soon,
        source=PeerAddress(incarnation="1", host="h"),
    )


@asynccontextmanager
async def ready() -> AsyncIterator[tuple[DecodeService, Wire, Stub]]:
    """A decode worker that has nothing to do."""
    wire, engine = Wire(), Stub()
    async with Tasks() as tasks:
        service = DecodeService(
            bus=cast(Bus, wire),
            clock=SystemClock(),
            tasks=tasks,
            engines=lambda _: cast(Engine, engine),
            instance=InstanceId("decode-1"),
        )
        await service.start()
        async with asyncio.timeout(5):
            while service.worker.state is not WorkerState.READY:
                await asyncio.sleep(0)
        yield service, wire, engine


@asynccontextmanager
async def started() -> AsyncIterator[tuple[DecodeService, Wire, Stub]]:
    """A decode worker with one attempt under way."""
    async with ready() as (service, wire, engine):
        await wire.call("reserve", reserve_of())
        start = start_of()
        await wire.call("start", start)
        assert (await wire.call("start", start)).duplicate
        yield service, wire, engine


async def settled(service: DecodeService) -> None:
    """Wait until all that is under way has come to its end."""
    for _ in range(20):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        while not service.worker.speaker.silent:
            await asyncio.sleep(0)


async def test_nothing_is_said_before_the_claim() -> None:
    """Tokens and even the end wait for it, and come in order, with the record's revision."""
    async with started() as (service, wire, engine):
        engine.say("a", "b")
        engine.finish()
        await settled(service)
        assert wire.said == []
        assert len(service.worker.leases) == 1
        wire.claim.set_result(Claimed(attempt=0, revision=9))
        await settled(service)
        chunks = cast("list[TokenChunk]", wire.said)
        assert [(c.offset, c.text) for c in chunks] == [(0, "a"), (1, "b"), (2, "!")]
        assert (chunks[-1].total, chunks[-1].revision) == (2, 9)
        assert wire.why_ended() == ["finished"]
        assert len(service.worker.leases) == 0


async def test_later_tokens_leave_as_they_come() -> None:
    """Once claimed, each token is said where it arrives, and a replay gives all of them again."""
    async with started() as (service, wire, engine):
        wire.claim.set_result(Claimed(attempt=0))
        await settled(service)
        for text in "abc":
            engine.say(text)
            await settled(service)
        engine.finish()
        await settled(service)
        assert [chunk.text for chunk in wire.said] == [*"abc", "!"]
        assert wire.why_ended() == ["finished"]
        again = await wire.call("replay", Replay(rid=RID, attempt=0, offset=1, reply=REPLY))
        assert again == Replayed(chunks=3, first=0)


@pytest.mark.parametrize("early", [True, False])
async def test_stages_begin_and_end_with_the_first_token(*, early: bool) -> None:
    """Decoding is told from the engine's first token on, whether the claim came before it."""
    async with started() as (service, wire, engine):
        if early:
            wire.claim.set_result(Claimed(attempt=0))
            await settled(service)
        await asyncio.sleep(0.05)
        engine.say("a")
        await asyncio.sleep(0.05)
        if not early:
            wire.claim.set_result(Claimed(attempt=0))
        engine.say("b")
        engine.finish()
        await settled(service)
        stages = {event.kind: event for event in wire.events}
        first, decoded = stages[EventKind.STAGE_FIRST_TOKEN], stages[EventKind.STAGE_DECODE]
        assert first.at_ms == decoded.start_ms
        assert decoded.at_ms - decoded.start_ms >= 40
        assert decoded.start_ms - service.worker.attempts[RID, 0].started_ms >= 40


async def test_a_refused_claim_silences_the_attempt() -> None:
    """Not a token is said, the engine is told to stop, and the lease ends with the reason."""
    async with started() as (service, wire, engine):
        engine.say("a")
        wire.claim.set_exception(PdbusError(ErrorCode.STALE_ATTEMPT))
        await settled(service)
        engine.say("b")
        await settled(service)
        assert not any(isinstance(said, TokenChunk) for said in wire.said)
        assert len(engine.aborted) == 1
        assert wire.why_ended() == ["claim refused: stale_attempt"]


async def test_a_failure_before_any_token_does_not_wait_for_the_claim() -> None:
    """It is told at once, and what was claimed later changes nothing."""
    async with started() as (service, wire, engine):
        engine.stream.push(JobFailed(job=JobId("j"), code=ErrorCode.TRANSFER_CORRUPT))
        await settled(service)
        (failed,) = wire.said
        assert isinstance(failed, AttemptFailed)
        assert failed.code is ErrorCode.TRANSFER_CORRUPT
        assert wire.why_ended() == ["finished"]
        wire.claim.set_result(Claimed(attempt=0))
        await settled(service)
        assert wire.said == [failed]


async def test_a_failure_after_tokens_is_told_behind_them() -> None:
    """Tokens that came before it wait for the claim, and so does the failure."""
    async with started() as (service, wire, engine):
        engine.say("a")
        engine.stream.push(JobFailed(job=JobId("j"), code=ErrorCode.ENGINE_ERROR))
        await settled(service)
        assert wire.said == []
        assert len(service.worker.leases) == 1
        wire.claim.set_result(Claimed(attempt=0))
        await settled(service)
        token, failed = wire.said
        assert isinstance(token, TokenChunk)
        assert isinstance(failed, AttemptFailed)
        assert failed.code is ErrorCode.ENGINE_ERROR
        assert wire.why_ended() == ["finished"]


@pytest.mark.parametrize("claimed", [True, False])
async def test_the_death_of_the_engine_is_told(*, claimed: bool) -> None:
    """Whatever was claimed, the gateway hears of it and the lease ends with the engine."""
    async with started() as (service, wire, engine):
        if claimed:
            wire.claim.set_result(Claimed(attempt=0))
            await settled(service)
        engine.stream.fail(EngineDead("killed"))
        await settled(service)
        (failed,) = wire.said
        assert isinstance(failed, AttemptFailed)
        assert (failed.code, failed.detail) == (ErrorCode.DECODE_LOST, "killed")
        assert wire.why_ended() == ["engine gone"]


async def test_an_abort_ends_it_while_the_claim_is_open() -> None:
    """Who cancels does not wait for a router, and the answer names no lease any more."""
    async with started() as (service, wire, engine):
        await wire.call("abort", Abort(rid=RID, attempt=0, reason="the client left"))
        await settled(service)
        assert len(engine.aborted) == 1
        assert wire.why_ended() == ["the client left"]
        assert len(service.worker.leases) == 0


async def test_a_drain_keeps_what_was_promised() -> None:
    """Who has a reservation may still start; who has none is refused; the drain waits for both."""
    async with ready() as (service, wire, engine):
        await wire.call("reserve", reserve_of())
        drain = asyncio.create_task(service.drain(5))
        await settled(service)
        assert service.worker.state is WorkerState.DRAINING
        other = RequestId("01hf7yb2ny8wsyvtsy3bemvcp3")
        with pytest.raises(PdbusError) as refused:
            await wire.call("reserve", reserve_of(other))
        assert refused.value.code is ErrorCode.DRAINING
        assert not (await wire.call("start", start_of())).duplicate
        wire.claim.set_result(Claimed(attempt=0))
        engine.say("a")
        await settled(service)
        assert not drain.done()
        engine.finish()
        await drain
        assert [chunk.text for chunk in wire.said] == ["a", "!"]
        assert wire.why_ended() == ["finished"]


async def test_a_drain_does_not_wait_longer_than_a_promise_holds() -> None:
    """A reservation that nobody uses ends by its own clock, and the drain with it."""
    async with ready() as (service, wire, _):
        await wire.call("reserve", reserve_of(within_ms=100))
        async with asyncio.timeout(4):
            await service.drain(5)
        assert wire.why_ended() == ["reservation expired"]


async def test_promises_end_with_the_grace_and_with_the_engine() -> None:
    """Nothing runs for them: their slots are free at once."""
    for end, why in (("grace", "drained"), ("engine", "engine gone")):
        async with ready() as (service, wire, engine):
            await wire.call("reserve", reserve_of())
            if end == "grace":
                await service.drain(0)
            else:
                engine.gone.set()
                await settled(service)
            assert wire.why_ended() == [why]
