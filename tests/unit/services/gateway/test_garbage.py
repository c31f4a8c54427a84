"""What a request leaves behind is freed with it: circles would wait for a collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest

from libs.clock import SystemClock
from proto.ids import RequestId, TenantHash
from proto.sampling import SamplingParams
from services.gateway.api import Call
from services.gateway.calls.live import LiveCall
from services.gateway.edge import Exchange
from services.gateway.prompt import PromptIds
from tests.unit.services.gateway.edge.test_server import connect, request, serving
from tests.unit.services.gateway.rig import Rig

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing be freed but what nobody refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def exchanges() -> int:
    """Return how many exchanges there are, whoever holds them."""
    return sum(type(one) is Exchange for one in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("stream", [True, False])
async def test_exchanges_are_freed_as_they_end(rig: Rig, *, stream: bool):
    """Of all exchanges of a connection only the last one is still known to it."""
    async with serving(rig) as server:
        others = exchanges()
        reader, writer = await connect(server)
        for _ in range(4):
            writer.write(request(stream=stream))
            await reader.readuntil(b"0\r\n\r\n" if stream else b"}}")
            await asyncio.sleep(0.01)
        left = exchanges() - others
        writer.close()
    assert left <= 1


@pytest.mark.usefixtures("no_collections")
async def test_calls_are_freed_as_they_end():
    """A call that has ended and its reader hold each other no longer."""
    call = Call(
        rid=RequestId("a" * 26),
        tenant=TenantHash("t"),
        model="m",
        prompt=PromptIds(b""),
        sampling=SamplingParams(max_tokens=9),
        digest="d",
        deadline_ms=1 << 60,
    )

    class Ports:
        clock = SystemClock()

    live = LiveCall(cast("Any", Ports()), call, on_over=lambda _: None)
    reading = asyncio.ensure_future(live.read())
    await asyncio.sleep(0)
    live._close(None)
    reader = await reading
    assert reader.rid == call.rid
    left = weakref.ref(live)
    del live, reader, reading
    await asyncio.sleep(0)
    assert left() is None
