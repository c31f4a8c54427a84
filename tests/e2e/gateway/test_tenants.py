"""API keys and tenants over HTTP, with a key file that changes while the stack runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from libs.bus import BucketSpec
from ops.cli.keys import add, revoke
from proto.ids import tenant_hash
from proto.keyfile import key_id
from proto.ledger import RequestRecord
from proto.subjects import BUCKET_REQUESTS
from tests.support.http_client import Exchange, Reply, chat_body, get, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import witness

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

TAKEN_S = 5.0
"""How soon a changed key file counts; it is looked at each second."""


@dataclass(frozen=True, slots=True)
class House:
    """A stack that asks for keys."""

    stack: RunningStack
    file: Path
    keys: dict[str, str]

    async def ask(self, tenant: str, text: str = "hello", **fields: Any) -> Reply:
        """Send a chat request with a tenant's key; `headers` are added."""
        headers = {"authorization": f"Bearer {self.keys[tenant]}", **fields.pop("headers", {})}
        body = chat_body(text, **({"max_tokens": 4, "ignore_eos": True} | fields))
        return await post(self.stack.port, body, headers=headers)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run a stack with three tenants."""
    place = tmp_path_factory.mktemp("tenants")
    file = place / "keys.json"
    keys: dict[str, str] = {}

    def make(tenant: str, **rules: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            written: list[str] = []
            patch.setattr("sys.stdout.write", written.append)
            add(tenant, file=file, **rules)
        keys[tenant] = "".join(written).strip()

    make("acme")
    make("counted", requests=6)
    make("other")
    make("small", tokens=60)
    make("narrow", streams=1)
    make("picky", model=("something-else",))
    make("leaver")
    with run_stack(place / "state", f"--keys={file}") as stack:
        yield House(stack, file, keys)


def code_of(reply: Reply) -> tuple[int, str]:
    error = reply.error
    assert error is not None
    return reply.status, error["code"]


async def test_keys_are_asked_for(house: House) -> None:
    """Without a key or with a wrong one nothing of the API can be had; probes need none."""
    body = chat_body("hello")
    for headers in ({}, {"authorization": "Bearer sk-none.nothing"}, {"authorization": "Basic x"}):
        reply = await post(house.stack.port, body, headers=headers)
        assert code_of(reply) == (401, "invalid_api_key")
        assert reply.headers["x-request-id"]
    assert (await get(house.stack.port, "/v1/models")).status == 401
    assert (await get(house.stack.port, "/readyz")).status == 200
    assert (await house.ask("acme")).status == 200


async def test_only_allowed_models(house: House) -> None:
    """A key for other models is refused before anything is computed."""
    assert code_of(await house.ask("picky")) == (403, "model_not_allowed")


async def test_limits_are_told(house: House) -> None:
    """Headers tell what is left; a spent limit is a 429 that says when to come back."""
    told = [(await house.ask("counted")).headers for _ in range(2)]
    assert {headers["x-ratelimit-limit-requests"] for headers in told} == {"6"}
    first, second = (int(headers["x-ratelimit-remaining-requests"]) for headers in told)
    # One comes back in ten seconds.
    assert second <= first <= 5
    replies = [await house.ask("small") for _ in range(4)]
    statuses = [reply.status for reply in replies]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    refused = replies[-1]
    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "true"
    assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
    assert code_of(await house.ask("small", "word " * 100)) == (413, "request_too_large")
    # Nobody else is any the poorer.
    assert (await house.ask("other")).status == 200


async def test_requests_at_a_time(house: House) -> None:
    """A second request beside a running one is refused, and the first goes on."""
    body = json.dumps(chat_body("hello", max_tokens=3000, ignore_eos=True, stream=True)).encode()
    headers = {"authorization": f"Bearer {house.keys['narrow']}"}
    first = await Exchange.open(
        house.stack.port, "POST", "/v1/chat/completions", body, headers=headers
    )
    await first.until(b"data: ")
    assert code_of(await house.ask("narrow")) == (429, "rate_limit_exceeded")
    first.hang_up()
    # Its place is free as soon as the gateway has seen it leave.
    await until(lambda: house.ask("narrow"), 200)


async def test_tenants_share_no_keys(house: House) -> None:
    """One idempotency key of two tenants is two requests; the ledger knows whose each is."""
    headers = {"idempotency-key": "the-same"}
    one, again, other = [
        await house.ask(tenant, "whose is it", headers=headers)
        for tenant in ("acme", "acme", "other")
    ]
    assert one.rid == again.rid != other.rid
    async with witness(house.stack.record.nats_url) as seen:
        store = seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
        for reply, tenant in ((one, "acme"), (other, "other")):
            found = await store.get(reply.rid)
            assert found is not None
            assert found.value.tenant == tenant_hash(tenant)


async def test_a_revoked_key_is_refused_soon(house: House) -> None:
    """The file is read again while requests run; a broken one in between changes nothing."""
    assert (await house.ask("leaver")).status == 200
    good = await asyncio.to_thread(house.file.read_text)
    await asyncio.to_thread(house.file.write_text, "{ broken")
    await asyncio.sleep(1.5)
    assert (await house.ask("leaver")).status == 200
    await asyncio.to_thread(house.file.write_text, good)
    revoke(key_id(house.keys["leaver"]), file=house.file)
    await until(lambda: house.ask("leaver"), 401)
    assert (await house.ask("other")).status == 200


async def until(ask: Callable[[], Any], status: int) -> None:
    """Ask until the answer has a status."""
    deadline = time.monotonic() + TAKEN_S
    while (await ask()).status != status:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
