"""The NATS service API (ADR-32): every service of a stack answers it as stock tools expect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import nats
import pytest
from nats.aio.client import Client
from nats.micro.service import (
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    ServiceVerb,
    control_subject,
)

from tests.support.http_client import chat_body, post
from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

AnswerT = TypeVar("AnswerT", ServicePing, ServiceInfo, ServiceStats)

SERVICES = ("gateway", "router", "prefill", "decode", "cleanup")
ENDPOINTS = {
    "router": {"place", "claim"},
    "prefill": {"start", "abort", "release", "inventory"},
    "decode": {"reserve", "start", "replay", "abort", "release", "inventory"},
}
ONCE_A_REQUEST = {
    ("router", "place"),
    ("router", "claim"),
    ("prefill", "start"),
    ("decode", "reserve"),
    ("decode", "start"),
}
QUIET_S = 0.5


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of workers."""
    with run_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[Client]:
    """A plain connection, as a stock tool has it."""
    connection = await nats.connect(stack.record.nats_url)
    yield connection
    await connection.close()


async def ask_all(client: Client, subject: str) -> list[dict[str, Any]]:
    """Ask whoever listens; return all answers that come until it is quiet."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(subject, b"", reply=inbox)
    found: list[dict[str, Any]] = []
    while True:
        try:
            msg = await answers.next_msg(timeout=QUIET_S)
        except nats.errors.TimeoutError:
            return found
        found.append(json.loads(msg.data))


async def ask(client: Client, kind: type[AnswerT], verb: ServiceVerb, *name: str) -> list[AnswerT]:
    """Ask, and read the answers with nats-py's own type."""
    found = await ask_all(client, control_subject(verb, *name))
    for answer in found:
        assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
    return [kind.from_dict(answer) for answer in found]


def instances(stack: RunningStack) -> dict[str, str]:
    """Return the instance of each service."""
    return {slot.role: slot.instance for slot in stack.record.slots if slot.role != "nats"}


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (ServiceVerb.PING, ServicePing),
        (ServiceVerb.INFO, ServiceInfo),
        (ServiceVerb.STATS, ServiceStats),
    ],
)
async def test_each_service_answers_at_three_levels(
    stack: RunningStack, client: Client, verb: ServiceVerb, kind: type[Any]
) -> None:
    """All answer `$SRV.<verb>`; one answers at its name, and one at its name and id."""
    everybody = await ask(client, kind, verb)
    expected = instances(stack)
    assert {answer.name: answer.id for answer in everybody} == expected
    assert len(everybody) == len(SERVICES) == len(expected)
    levels = [(name,) for name in SERVICES] + list(expected.items())
    alone = await asyncio.gather(*(ask(client, kind, verb, *level) for level in levels))
    for level, answers in zip(levels, alone, strict=True):
        assert [(a.name, a.id) for a in answers] == [(level[0], expected[level[0]])]
        assert answers[0].version.count(".") == 2
        assert len(answers[0].metadata["incarnation"]) == 16
        # What the type reads is all that there is: writing it again gives the same.
        assert kind.from_dict(answers[0].to_dict()) == answers[0]


async def test_info_names_the_endpoints(stack: RunningStack, client: Client) -> None:
    """INFO lists each verb with a subject that this instance answers, and its queue group."""
    infos = {info.name: info for info in await ask(client, ServiceInfo, ServiceVerb.INFO)}
    for name, info in infos.items():
        assert ENDPOINTS.get(name, set()) <= {e.name for e in info.endpoints}
        for endpoint in info.endpoints:
            assert endpoint.subject.startswith(f"pdbus.v1.{name}.")
            assert endpoint.queue_group == ("router" if name == "router" else "")
    inventory = next(e for e in infos["decode"].endpoints if e.name == "inventory")
    # An empty map in the wire format of our messages.
    reply = await client.request(inventory.subject, b"\x80", timeout=2)
    assert not reply.headers


async def test_stats_rise_with_requests(stack: RunningStack, client: Client) -> None:
    """Requests, errors, times and the last error are counted at the endpoint that had them."""
    before = await stats(client)
    replies = await asyncio.gather(
        *(post(stack.port, chat_body(f"count {n}", max_tokens=3, stream=n > 2)) for n in range(5))
    )
    assert all(reply.claims_completeness for reply in replies)
    after = await stats(client)
    assert after.keys() == before.keys()
    for place in ONCE_A_REQUEST:
        assert after[place].num_requests - before[place].num_requests >= 5, place
        assert after[place].num_errors == before[place].num_errors, place
        assert after[place].processing_time > before[place].processing_time, place
        assert after[place].average_processing_time > 0, place
        assert (after[place].data or {}) == {"inflight": 0}, place
    start = ("prefill", "start")
    reply = await client.request(after[start].subject, b"nonsense", timeout=2)
    assert reply.headers is not None
    assert reply.headers["Nats-Service-Error-Code"] == "400"
    failed = (await stats(client))[start]
    assert failed.num_errors == after[start].num_errors + 1
    assert failed.last_error == "invalid_request"


async def stats(client: Client) -> dict[tuple[str, str], EndpointStats]:
    """Return the figures of all endpoints of all services."""
    found = await ask(client, ServiceStats, ServiceVerb.STATS)
    for answer in found:
        # nats-py reads the UTC time of the wire into a value without a zone.
        age = datetime.now(UTC) - answer.started.replace(tzinfo=UTC)
        assert timedelta(0) < age < timedelta(minutes=10)
    return {(answer.name, end.name): end for answer in found for end in answer.endpoints}
