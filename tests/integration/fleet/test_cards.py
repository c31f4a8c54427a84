"""A fleet whose two workers differ in one field of their cards spends nothing and names the field.

One router, and for each field a model of its own with one prefill and one decode worker: the real
services with scripted engines, on a real bus.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from libs.bus import BucketSpec, BusSettings, NatsBus, ServiceIdentity, open_bus
from libs.bus.testing import NatsServer
from libs.clock import SystemClock
from libs.engine.script.plane import pools_of
from libs.engine.script.settings import ScriptOptions
from libs.engine.scripted import ScriptedEngine
from libs.lifecycle.tasks import Tasks
from libs.worker.load import presence_of
from ops.cli.views.workers import notes
from proto import subjects
from proto.control import Started
from proto.decode import DecodeStart, Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.ids import (
    Incarnation,
    InstanceId,
    Nonce,
    RequestId,
    TenantHash,
    new_incarnation,
    new_request_id,
    new_room,
)
from proto.kv import PeerAddress
from proto.ledger import Mode, RequestRecord, RequestState, Sink
from proto.prefill import PrefillStart, ReplyTo
from proto.router import Place, Placed
from proto.sampling import SamplingParams
from proto.subjects import BUCKET_REQUESTS
from proto.workers import CompatCard, Role
from services.decode import DecodeService
from services.prefill import PrefillService
from services.router import RouterService
from tests.support.engines import host_options
from tests.support.plane import Exchange, MemoryPlane

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FIELDS = CompatCard.__struct_fields__
CLOCK = SystemClock()
SINK = Sink(gateway=InstanceId("gateway-cards"), incarnation=Incarnation("9" * 16))
REPLY = ReplyTo(gateway=SINK.gateway, incarnation=SINK.incarnation, nonce=Nonce("0" * 32))
OTHER = {
    "page_size": 8,
    "layers": 9,
    "kv_heads": 9,
    "head_dim": 36,
    "tp": 2,
    "pp": 2,
    "protocol": 99,
    "context_tokens": 99,
}


@dataclass
class Fleet:
    """One pair a field, and the router in front of them."""

    bus: NatsBus
    router: RouterService
    prefills: dict[str, PrefillService]
    decodes: dict[str, DecodeService]

    def card(self, worker: PrefillService | DecodeService) -> CompatCard:
        ready = worker.worker.ready
        assert ready is not None
        return ready.card

    async def record(self, model: str) -> RequestId:
        """Write an accepted request into the ledger, as a gateway does."""
        rid = new_request_id(CLOCK.unix_ms(), CLOCK.entropy)
        record = RequestRecord(
            rid=rid,
            tenant=TenantHash("0" * 16),
            model=model,
            state=RequestState.ACCEPTED,
            attempt=-1,
            sink=SINK,
            digest="d",
            deadline_ms=CLOCK.unix_ms() + 60_000,
            created_ms=CLOCK.unix_ms(),
        )
        store = self.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
        await store.create(rid, record)
        return rid


def model_of(field: str) -> str:
    return f"m-{field}"


def engines(role: Role, field: str, *, changed: bool):
    """Return what makes the scripted engines of one worker."""
    claims: dict[str, str | int | None] = {}
    if changed:
        claims[field] = OTHER.get(field, "other")
    options = host_options(role, served_model=model_of(field), script=ScriptOptions(claims=claims))
    exchange = Exchange()

    def make(incarnation: Incarnation) -> ScriptedEngine:
        return ScriptedEngine(
            msgspec.structs.replace(options, incarnation=incarnation),
            CLOCK,
            open_plane=lambda _o, memory, _c, wake: _plane(exchange, incarnation, memory, wake),
            crash=lambda: None,
        )

    return make


def _plane(exchange, incarnation, memory, wake) -> MemoryPlane:
    pages, rows = pools_of(memory)
    plane = MemoryPlane(exchange, incarnation, pages, rows, wake)
    plane.address = PeerAddress(incarnation=incarnation, host="here")
    return plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Start a router and all pairs in this process."""
    server = NatsServer(Path(tmp_path_factory.mktemp("nats")))
    server.start_blocking()
    async with Tasks() as tasks:
        identity = ServiceIdentity("router", "0.1.0", InstanceId("router-cards"))
        bus = await open_bus(BusSettings(urls=(server.url,)), CLOCK, tasks, identity)
        store = bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
        common = {"bus": bus, "clock": CLOCK, "tasks": tasks}
        router = RouterService(
            **common,
            store=store,
            instance=InstanceId("router-cards"),
            incarnation=new_incarnation(CLOCK.entropy),
        )
        found = Fleet(bus, router, {}, {})
        for field in FIELDS:
            name = field.replace("_", "-")
            found.prefills[field] = PrefillService(
                **common,
                engines=engines(Role.PREFILL, field, changed=False),
                instance=InstanceId(f"prefill-{name}"),
            )
            found.decodes[field] = DecodeService(
                **common,
                engines=engines(Role.DECODE, field, changed=True),
                instance=InstanceId(f"decode-{name}"),
            )
        workers = [*found.prefills.values(), *found.decodes.values()]
        await router.start()
        for worker in workers:
            await worker.start()
        while not (
            router.readiness()[0]
            and all(worker.readiness()[0] for worker in workers)
            and len(list(router.fleet.usable(CLOCK.monotonic(), *Role))) >= len(workers)
        ):
            await CLOCK.sleep(0.02)
        yield found
        for service in (router, *workers):
            await service.drain(0.0)
        await bus.close()
    server.stop()


def place(rid: RequestId, field: str) -> Place:
    return Place(
        rid=rid,
        attempt=0,
        model=model_of(field),
        prompt_tokens=10,
        max_tokens=4,
        sink=SINK,
        deadline_ms=CLOCK.unix_ms() + 60_000,
        not_after_ms=CLOCK.unix_ms() + 1000,
    )


@pytest.mark.parametrize("field", FIELDS)
async def test_the_router_places_nothing_and_names_the_field(fleet: Fleet, field: str) -> None:
    """A request for a pair that differs in one field is refused before any worker hears of it."""
    rid = await fleet.record(model_of(field))
    with pytest.raises(PdbusError) as raised:
        await fleet.bus.request(subjects.ROUTER_PLACE, place(rid, field), Placed, timeout_s=5)
    assert raised.value.code is ErrorCode.VERSION_MISMATCH
    assert f"differ in {field} ({field}: " in raised.value.detail
    for service in (fleet.prefills[field], fleet.decodes[field]):
        assert service.worker.attempts == {}
        assert len(service.worker.leases) == 0


@pytest.mark.parametrize("field", FIELDS)
async def test_the_operator_sees_the_field(fleet: Fleet, field: str) -> None:
    """`pdbus workers` has a line for each pair that does not fit, with both values."""
    beats = [member.heartbeat for member in fleet.router.fleet.members(Role.PREFILL, Role.DECODE)]
    name = field.replace("_", "-")
    mine = f"refused: prefill-{name} → decode-{name}: version_mismatch: {field}: "
    (line,) = [line for line in notes(beats) if line.startswith(mine)]
    left = getattr(fleet.card(fleet.prefills[field]), field)
    right = getattr(fleet.card(fleet.decodes[field]), field)
    assert line.endswith(f"{left} in prefill-{name}, {right} in decode-{name}")


@pytest.mark.parametrize("field", FIELDS)
async def test_decode_refuses_what_was_placed_for_another_card(fleet: Fleet, field: str) -> None:
    """Reserve and start are refused by the decode itself: it names the field and holds nothing."""
    service, other = fleet.decodes[field], fleet.prefills[field]
    compat = fleet.card(other).compat
    rid, soon = RequestId("r" * 26), CLOCK.unix_ms() + 5000
    reserve = Reserve(
        rid=rid, attempt=0, tokens=10, compat=compat, not_after_ms=soon, deadline_ms=soon
    )
    start = DecodeStart(
        rid=rid,
        attempt=0,
        mode=Mode.DISAGGREGATED,
        room=new_room(CLOCK.entropy),
        input_ids=b"\0" * 40,
        sampling=SamplingParams(max_tokens=4),
        reply=REPLY,
        compat=compat,
        not_after_ms=soon,
        deadline_ms=soon,
        source=PeerAddress(incarnation="0" * 16, host="here"),
    )
    for verb, ask, answer in (("reserve", reserve, Reserved), ("start", start, Started)):
        subject = subjects.worker(service.worker.ref, verb)
        with capture_logs() as logs, pytest.raises(PdbusError) as raised:
            await fleet.bus.request(subject, ask, answer, timeout_s=5)
        assert raised.value.code is ErrorCode.VERSION_MISMATCH
        assert raised.value.detail == f"{service.worker.instance} differs in {field}"
        assert [one["fields"] for one in logs if one["event"] == "cards differ"] == [(field,)]
    assert len(service.worker.leases) == 0


@pytest.mark.parametrize("field", FIELDS)
async def test_prefill_refuses_what_was_placed_for_another_card(fleet: Fleet, field: str) -> None:
    """A start is refused by the prefill itself: it names the field and computes no token."""
    service, other = fleet.prefills[field], fleet.decodes[field]
    soon = CLOCK.unix_ms() + 5000
    start = PrefillStart(
        rid=RequestId("r" * 26),
        attempt=0,
        room=new_room(CLOCK.entropy),
        input_ids=b"\0" * 40,
        sampling=SamplingParams(max_tokens=4),
        reply=REPLY,
        compat=fleet.card(other).compat,
        not_after_ms=soon,
        deadline_ms=soon,
        write_by_ms=soon,
    )
    subject = subjects.worker(service.worker.ref, "start")
    with pytest.raises(PdbusError) as raised:
        await fleet.bus.request(subject, start, Started, timeout_s=5)
    assert raised.value.code is ErrorCode.VERSION_MISMATCH
    assert raised.value.detail == f"{service.worker.instance} differs in {field}"
    assert service.worker.attempts == {}
    load = presence_of(service.worker).load
    assert load is not None
    assert load.kv_used_tokens == 0
