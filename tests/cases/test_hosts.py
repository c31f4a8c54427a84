"""OPS-06 and OPS-11: addresses that are not IPv4, and settings about hosts that are wrong.

What the data plane does with them is in tests/integration/transfer/hosts/test_network.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.bus.testing import NatsServer
from tests.cases.adapter import ask
from tests.cases.loose import PAIR, LooseStack
from tests.cases.test_ops import loose
from tests.support.http_client import get

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]


def no_ipv6() -> bool:
    """Return whether this host has no IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return False
    except OSError:
        return True


@contextmanager
def on_ipv6(folder: Path, model: Path) -> Iterator[tuple[LooseStack, str]]:
    """Prepare a stack whose bus listens on ::1 and nowhere else; return its address too."""
    (folder / "nats").mkdir(parents=True)
    server = NatsServer(folder / "nats")
    server.extra = f'listen: "[::1]:{server.port}"'
    stack = LooseStack(folder, server, model)
    try:
        server.launch()
        yield stack, f"nats://[::1]:{server.port}"
    finally:
        try:
            stack.stop()
        finally:
            server.stop()


@pytest.mark.skipif(no_ipv6(), reason="no IPv6 here")
async def test_a_bus_on_ipv6_only(words: Path, tmp_path: Path) -> None:
    """OPS-06: with the bus at [::1]:port all services start and serve; nothing is bound astray."""
    with on_ipv6(tmp_path, words) as (stack, url):
        for name in PAIR:
            stack.start(name, nats=url)
        await stack.ready(within_s=40)
        assert (await ask(stack.port, "Hello")).claims_completeness
        assert "[::1]" in stack.log("decode-0")


@pytest.mark.parametrize(
    ("arguments", "variables", "phrase"),
    [
        (("--kv-lanes", "require:tpc"), {}, "--kv-lanes: kv_lanes: Expected"),
        (("--kv-chunk-bytes", "1"), {}, "--kv-chunk-bytes: kv_chunk_bytes: Expected"),
        ((), {"PDBUS_DECODE_KV_INTERFCE": "eth0"}, "unknown variable PDBUS_DECODE_KV_INTERFCE"),
        ((), {"PDBUS_DECODE_KV_CHECKSUM_EVERY": "-1"}, "PDBUS_DECODE_KV_CHECKSUM_EVERY"),
    ],
)
async def test_a_wrong_setting_is_named_at_the_start(
    words: Path, tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str], phrase: str
) -> None:
    """OPS-11: misspelt and out of range: exit code 2, and the setting by its name."""
    with loose(tmp_path, words) as stack:
        stack.start("decode-0", *arguments, env=variables)
        assert await stack.end("decode-0", 15) == 2
        assert phrase in stack.log("decode-0").splitlines()[-1]


async def test_an_interface_that_is_not_there_is_a_reason(words: Path, tmp_path: Path) -> None:
    """OPS-11: a device that does not exist: not ready, with its name; settings are told, no secret.

    Nobody is told an address that cannot be reached: the worker announces none.
    """
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        stack.start("decode-0", "--kv-interface", "nosuch0")
        why = ""
        async with asyncio.timeout(15):
            while "interface nosuch0" not in why:
                why = await stack.why_not("decode-0")
                await asyncio.sleep(0.05)
        assert (await get(stack.health_port("decode-0"), "/livez")).status == 200
        assert "kv_interface" in stack.log("decode-0")


async def test_an_address_that_leads_nowhere_is_no_pair(words: Path, tmp_path: Path) -> None:
    """OPS-11: workers bound to devices that do not meet: 503 with the reason, not a hang.

    Loopback of one side and the real device of the other: each has an address, and none is reached.
    """
    device = next(
        (name for _, name in socket.if_nameindex() if name.startswith(("eth", "en"))), None
    )
    if device is None:
        pytest.skip("no network device but loopback")
    tcp = ("--kv-transports", "tcp", "--kv-interface")
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        for name in PAIR:
            own = {"prefill-0": (*tcp, "lo"), "decode-0": (*tcp, device)}.get(name, ())
            stack.start(name, *own)
        async with asyncio.timeout(30):
            while "pair refused" not in stack.log("router-0"):
                await asyncio.sleep(0.1)
        reply = await ask(stack.port, "Hello", timeout_s=5)
        assert reply.status in {502, 503}, reply
        assert "cannot reach prefill-0" in stack.log("router-0")
