"""UCX-*: which way KV takes, what operators may demand of it, and what they see.

How planes behave when peers die is in tests/integration/transfer/.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from proto.events import EventKind
from proto.ledger import RequestState
from tests.cases.adapter import ask, open_product
from tests.cases.loose import PAIR, LooseStack
from tests.cases.test_ops import loose
from tests.support.http_client import get

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

NOT_READY_S = 15.0
"""Within this time a worker that cannot work says why."""
REQUIRE = ("--kv-lanes", "require:sysv")
FORCED = {"UCX_TLS": "tcp"}
PROBE = ("pairs", "--probe", "--json")
SLOW = pytest.mark.slow


async def pdbus(stack: LooseStack, *command: str, check: bool = True) -> str:
    """Return what a command of the program prints."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "ops.cli", *command, "--nats", stack.nats_url],
        capture_output=True,
        text=True,
        check=check,
    )
    return done.stdout


async def not_ready(stack: LooseStack, name: str, *phrases: str) -> str:
    """Wait until a process says why it is not ready, in these words."""
    why = ""
    async with asyncio.timeout(NOT_READY_S):
        while not all(phrase in why for phrase in phrases):
            why = await stack.why_not(name)
            await asyncio.sleep(0.05)
    return why


async def metrics(stack: LooseStack, name: str) -> str:
    return (await get(stack.health_port(name), "/metrics")).body.decode()


async def counted(stack: LooseStack, name: str, sample: str) -> None:
    """Wait until a process counts this; probes go on beside the first requests."""
    page = ""
    async with asyncio.timeout(NOT_READY_S):
        while sample not in page:
            page = await metrics(stack, name)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("forced", ["decode-0", pytest.param("prefill-0", marks=SLOW)])
async def test_a_lane_that_is_required_and_not_there_is_refused(
    words: Path, tmp_path: Path, forced: str
) -> None:
    """UCX-01: UCX_TLS=tcp on one side, `require:sysv` on both: refused before a byte has moved.

    Readiness, `pdbus workers`, `pdbus pairs`, metrics and the log have the reason. A worker that
    can use the lane is used as soon as it is there.
    """
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        for name in PAIR:
            arguments = REQUIRE if name in {"prefill-0", "decode-0"} else ()
            stack.start(name, *arguments, env=FORCED if name == forced else None)
        await not_ready(stack, "decode-0", "on lane tcp", "required is sysv")
        reason = "lane tcp, prefill-0 requires sysv (only lane tcp leads to prefill"
        await not_ready(stack, "prefill-0", "prefill-0 → decode-0", reason)
        reply = await ask(stack.port, "Hello")
        assert reply.status == 503, reply
        assert reason in await pdbus(stack, "workers")
        (row,) = [line for line in (await pdbus(stack, "pairs")).splitlines() if "decode-0" in line]
        assert "refused" in row
        assert reason in row
        assert 'pdbus_kv_pairs{lane="tcp",state="refused"} 1' in await metrics(stack, "decode-0")
        assert "pdbus_kv_transfer_bytes" not in await metrics(stack, "decode-0")
        said = (await get(stack.health_port("router-0"), "/readyz")).body.decode()
        assert "all 1 pairs are refused" in said
        assert reason in said
        router = await metrics(stack, "router-0")
        assert "pdbus_router_refused_pairs 1" in router
        assert 'pdbus_kv_pair_refusals_total{error_code="lane_refused",lane="tcp"}' in router
        prefill = await metrics(stack, "prefill-0")
        assert "pdbus_prefill_tokens_total" not in prefill
        assert "pair refused" in stack.log("router-0")
        other = forced.replace("0", "1")
        stack.start(other, *REQUIRE)
        await stack.ready("gateway-0", within_s=20)
        reply = await ask(stack.port, "Hello")
        assert reply.claims_completeness, reply
        assert reply.headers[f"x-pdbus-{forced.partition('-')[0]}"] == other
        served = "decode-0" if other.startswith("prefill") else "decode-1"
        assert 'pdbus_kv_transfer_bytes_total{lane="sysv"' in await metrics(stack, served)
        # A worker is ready as soon as one of its pairs is on the right lane.
        await stack.ready({"decode-0": "prefill-0", "prefill-0": "decode-0"}[forced], within_s=5)


async def test_an_unwanted_lane_is_pointed_out(words: Path, tmp_path: Path) -> None:
    """UCX-01: `warn:sysv` with UCX_TLS=tcp serves over tcp, says tcp everywhere, and says so."""
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        for name in PAIR:
            arguments = ("--kv-lanes", "warn:sysv") if name == "decode-0" else ()
            stack.start(name, *arguments, env=FORCED if name == "decode-0" else None)
        await stack.ready(within_s=30)
        async with open_product(stack) as product:
            reply = await product.ask("Hello")
            assert reply.claims_completeness, reply
            assert await product.ended({reply.rid}) == {RequestState.DONE: 1}
            stages = EventKind.STAGE_TRANSFER
            await product.seen.until(lambda: product.seen.of(reply.rid, stages), 5, "its transfer")
            (moved,) = product.seen.of(reply.rid, stages)
            assert moved.data["lane"] == "tcp"
            assert moved.data["moved_bytes"] == moved.data["expected_bytes"]
        await counted(stack, "decode-0", 'pdbus_kv_pairs{lane="tcp",state="up"} 1')
        page = await metrics(stack, "decode-0")
        assert 'pdbus_kv_pair_bandwidth_bytes_per_second{lane="tcp"}' in page
        assert "lane tcp, decode-0 wants sysv" in await pdbus(stack, "pairs")
        assert "pair is on an unwanted lane" in stack.log("router-0")
        (row,) = [json.loads(line) for line in (await pdbus(stack, *PROBE)).splitlines()]
        assert (row["decode"], row["prefill"], row["lane"]) == ("decode-0", "prefill-0", "tcp")
        assert [one["size_bytes"] for one in row["sizes"]] == [1 << 10, 64 << 10, 4 << 20]
        assert row["bytes_per_s"] > 0
        assert "decode-0 wants sysv" in await pdbus(stack, "doctor", check=False)


@pytest.mark.parametrize(
    ("variable", "value", "words_of_it"),
    [
        ("UCX_TLS", "rc", "is excluded by UCX_TLS=rc"),
        ("UCX_TLS", "tpc", "UCX_TLS=tpc in the environment names no transport of UCX: 'tpc'"),
        ("UCX_NET_DEVICES", "nosuch0", "UCX_NET_DEVICES=nosuch0"),
    ],
)
async def test_a_wrong_variable_is_named(
    words: Path, tmp_path: Path, variable: str, value: str, words_of_it: str
) -> None:
    """UCX-02: a transport list or device that leaves nothing: not ready, with variable and value.

    The worker stays, and tries again ever more slowly.
    """
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        stack.start("decode-0", env={variable: value})
        await not_ready(stack, "decode-0", words_of_it)
        assert (await get(stack.health_port("decode-0"), "/livez")).status == 200
        await asyncio.sleep(2)
        assert stack.ended("decode-0") is None
        assert stack.log("decode-0").count("engine lost") < 5


@pytest.mark.parametrize(
    ("value", "lane"),
    [
        ("^sm", "tcp"),
        pytest.param("sm", "sysv", marks=SLOW),
        pytest.param("^tcp", "sysv", marks=SLOW),
    ],
)
async def test_what_a_variable_leaves_is_used(
    words: Path, tmp_path: Path, value: str, lane: str
) -> None:
    """UCX-02: a list that leaves one lane is obeyed; both sides meet on it, and say so."""
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        for name in PAIR:
            stack.start(name, env={"UCX_TLS": value} if name == "prefill-0" else None)
        await stack.ready(within_s=30)
        assert (await ask(stack.port, "Hello")).claims_completeness
        await counted(stack, "decode-0", f'pdbus_kv_pairs{{lane="{lane}",state="up"}} 1')


async def test_sides_without_a_common_lane_say_so(words: Path, tmp_path: Path) -> None:
    """UCX-02, UCX-10: nothing in common is a reason within seconds, not a hang later."""
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        sides = {"prefill-0": "^sm", "decode-0": "sm"}
        for name in PAIR:
            stack.start(name, env={"UCX_TLS": sides[name]} if name in sides else None)
        text = ""
        async with asyncio.timeout(NOT_READY_S):
            while "no common lane" not in text:
                text = await pdbus(stack, "workers")
        assert "sysv, prefill has tcp" in text
        assert "lane tcp is excluded by UCX_TLS=sm" in text
        reply = await ask(stack.port, "Hello", timeout_s=5)
        assert reply.status == 503, reply
