"""The nats-server program and its configuration, with the real program."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request

import nats
import pytest

from libs.bus import ServerOptions, find_server, server_config
from libs.bus.testing import NatsServer, free_port, nats_server

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(port=14222, store_dir=None),
        ServerOptions(port=14222, store_dir='a "quoted" folder', sync_interval="always"),
        ServerOptions(
            port=14222,
            store_dir="x",
            monitor_port=18222,
            host="0.0.0.0",
            name="pdbus-1",
            extra='authorization { token: "t" }',
        ),
    ],
)
def test_the_configuration_is_understood_by_the_server(tmp_path, options):
    """The server's own check accepts every form of it."""
    path = tmp_path / "nats.conf"
    path.write_text(server_config(options))
    check = subprocess.run(
        [str(find_server()), "-t", "-c", str(path)], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


async def test_the_limits_are_those_that_the_bus_needs(tmp_path):
    """A running server reports the configured limits and the JetStream folder."""
    monitor = free_port()
    port = free_port()
    (tmp_path / "nats.conf").write_text(
        server_config(
            ServerOptions(
                port=port,
                monitor_port=monitor,
                store_dir=str(tmp_path / "js"),
                sync_interval="always",
            )
        )
    )
    process = subprocess.Popen(
        [str(find_server()), "-c", str(tmp_path / "nats.conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        facts = await asyncio.to_thread(_varz, monitor)
    finally:
        process.kill()
        process.wait()
    assert facts["max_payload"] == 4 * 1024 * 1024
    assert facts["max_pending"] == 64 * 1024 * 1024
    assert facts["write_deadline"] == 2_000_000_000
    assert facts["jetstream"]["config"]["store_dir"].startswith(str(tmp_path / "js"))
    assert facts["jetstream"]["config"]["sync_always"] is True


def _varz(port: int) -> dict:
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=2) as page:
                return json.load(page)
        except OSError:
            import time

            time.sleep(0.02)
    raise AssertionError("the monitoring port does not answer")


async def test_a_test_server_can_be_killed_and_comes_back_on_its_port():
    """Restarts keep port and files; at the end no process is left."""
    async with nats_server() as server:
        first = server.pid
        raw = await nats.connect(server.url)
        await raw.jetstream().add_stream(name="KEEP", subjects=["keep"])
        await raw.jetstream().publish("keep", b"x")
        await raw.close()
        server.kill()
        assert not server.greets()
        await server.start()
        assert server.pid != first
        raw = await nats.connect(server.url)
        assert (await raw.jetstream().stream_info("KEEP")).state.messages == 1
        await raw.close()
        server.pause()
        last = server.pid
    assert _gone(last)


def _gone(pid: int) -> bool:
    import os

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_configuration_that_the_server_refuses_is_told(tmp_path):
    """A server that does not start fails the test with the server's own words."""
    server = NatsServer(tmp_path, extra="no_such_option {")
    with pytest.raises(RuntimeError, match="did not start"):
        await server.start()
    server.stop()
