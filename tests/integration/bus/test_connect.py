"""Connections that are lost, refused, hung or denied."""

from __future__ import annotations

import asyncio
import time

import nkeys
import pytest
import uvloop

from libs.bus import (
    BusDown,
    BusNotStarted,
    BusSettings,
    Forbidden,
    RequestTimeout,
    ServiceIdentity,
    open_bus,
)
from libs.bus.connect import Link
from libs.bus.testing import nats_server
from libs.clock import SystemClock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import names
from proto.control import Abort, Aborted
from proto.ids import InstanceId
from tests.integration.bus.words import ABORT, endpoint, fresh_subject, until

pytestmark = pytest.mark.integration


async def opened(tasks: Tasks, **settings):
    """Open a bus without an identity."""
    return await open_bus(BusSettings(**settings), SystemClock(), tasks)


async def test_a_killed_server_is_found_again_with_all_subscriptions(own_nats, connect, metric):
    """Kill -9 and restart on the same port: within 2 s everybody hears everybody again."""
    server, caller = await connect(own_nats), await connect(own_nats)
    before = metric(names.BUS_RECONNECTS.name)
    subject = fresh_subject()
    served = await server.serve(endpoint(subject))
    seen = []
    await caller.subscribe(f"{subject}.more", Abort, lambda _, m: seen.append(m))
    for stop in (own_nats.kill, own_nats.terminate, own_nats.kill):
        stop()
        await until(lambda: not server.connected and not caller.connected)
        await asyncio.sleep(0.3)
        await own_nats.start()
        async with asyncio.timeout(2):
            await until(lambda: server.connected and caller.connected)
            await server.link.barrier()
            assert await caller.request(subject, ABORT, Aborted, timeout_s=1)
            await server.publish(f"{subject}.more", ABORT)
            await until(lambda: seen)
        seen.clear()
    assert served.num_requests == 3
    assert metric(names.BUS_RECONNECTS.name) == before + 6


async def test_reconnection_never_gives_up(own_nats, connect):
    """Far more attempts than nats-py's default of 60 per server are made."""
    bus = await connect(own_nats, reconnect_wait_s=0.001, reconnect_wait_max_s=0.005)
    own_nats.kill()
    await until(lambda: bus.link.client.server_pool[0].reconnects > 100, within_s=10)
    await own_nats.start()
    await until(lambda: bus.connected)


async def test_a_hanging_server_is_noticed_by_pings(own_nats, connect):
    """A server that accepts and says nothing counts as lost after two unanswered pings."""
    bus = await connect(own_nats, ping_interval_s=0.2)
    own_nats.pause()
    await until(lambda: not bus.connected)
    with pytest.raises(BusDown):
        await bus.publish(fresh_subject(), ABORT)
    own_nats.resume()
    await until(lambda: bus.connected)


async def test_a_request_over_an_outage_is_a_timeout_not_a_hang(own_nats, connect):
    """A request in flight when the server dies ends at its deadline, as unknown."""
    server, caller = await connect(own_nats), await connect(own_nats)
    release = asyncio.Event()

    async def hold(order: Abort) -> Aborted:
        await release.wait()
        return Aborted(rid=order.rid)

    subject = fresh_subject()
    served = await server.serve(endpoint(subject, hold))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(_outcome(caller, subject, 0.5))
        await until(lambda: served.inflight == 1)
        own_nats.kill()
    assert asked.result() is RequestTimeout
    release.set()
    await until(lambda: served.inflight == 0)


async def _outcome(caller, subject: str, timeout_s: float) -> type[Exception]:
    with pytest.raises(RequestTimeout) as caught:
        await caller.request(subject, ABORT, Aborted, timeout_s=timeout_s)
    return caught.type


async def test_drain_works_while_the_server_is_away(own_nats, connect):
    """An orderly end needs no server: nats-py's own drain raises while reconnecting."""
    bus = await connect(own_nats)
    await bus.serve(endpoint(fresh_subject()))
    await bus.subscribe(fresh_subject(), Abort, lambda _s, _m: None)
    own_nats.kill()
    await until(lambda: not bus.connected)
    async with asyncio.timeout(2):
        assert await bus.drain(1) is True
    await own_nats.start()
    await asyncio.sleep(0.3)
    assert not bus.connected


def test_closing_without_a_connection_works_under_uvloop():
    """A socket that is gone makes uvloop raise RuntimeError; closing swallows just that."""

    async def close_without_server() -> None:
        async with nats_server(jetstream=False) as server, Tasks() as tasks:
            buses = [await opened(tasks, urls=(server.url,)) for _ in range(5)]
            server.kill()
            await buses[0].close()
            await until(lambda: not any(bus.connected for bus in buses))
            for bus in buses:
                # As a ping leaves it that was under way.
                bus.link.client._pending_data_size = 6
                await bus.close()
                await asyncio.sleep(0.03)

    uvloop.run(close_without_server())


async def test_drain_stops_in_time_when_the_server_hangs(own_nats, connect):
    """The grace is kept although every step waits for a server that says nothing."""
    bus = await connect(own_nats)
    await bus.serve(endpoint(fresh_subject()))
    own_nats.pause()
    async with asyncio.timeout(3):
        await bus.drain(0.5)
    assert not bus.connected


async def test_without_a_server_the_start_fails_in_time_and_in_plain_words(own_nats):
    """The first connection has a deadline of its own; nats-py would try for ever."""
    own_nats.stop()
    async with Tasks() as tasks:
        started = time.monotonic()
        with pytest.raises(BusNotStarted, match="no NATS server answered"):
            await opened(tasks, urls=(own_nats.url,), startup_deadline_s=0.3)
        assert time.monotonic() - started < 5
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_starts_late_is_waited_for(own_nats):
    """Services may start before their server."""
    own_nats.stop()
    async with Tasks() as tasks, asyncio.TaskGroup() as group:
        opening = group.create_task(opened(tasks, urls=(own_nats.url,), startup_deadline_s=10))
        await asyncio.sleep(0.2)
        await own_nats.start()
        bus = await opening
        assert bus.connected
        await bus.close()


async def test_an_outage_in_the_middle_of_the_start_is_waited_out(own_nats, monkeypatch):
    """The start goes on after the server was lost between its steps, within its deadline."""
    check = Link.check_inbox
    outages = []

    async def check_in_an_outage(link: Link) -> None:
        if not outages:
            own_nats.kill()
            await until(lambda: not link.connected)
            outages.append(link)
            await own_nats.start()
        await check(link)

    monkeypatch.setattr(Link, "check_inbox", check_in_an_outage)
    async with Tasks() as tasks:
        bus = await opened(tasks, urls=(own_nats.url,))
        assert outages
        assert bus.connected
        await bus.close()


async def test_a_server_with_a_low_limit_is_refused_at_start():
    """A prompt must fit: the server's max_payload is checked before anything is promised."""
    async with nats_server(jetstream=False, max_payload="1MB") as server, Tasks() as tasks:
        with pytest.raises(BusNotStarted, match=r"1048576 bytes; 4194304 are needed"):
            await opened(tasks, urls=(server.url,))
        bus = await opened(tasks, urls=(server.url,), min_max_payload=1000)
        await bus.close()


async def test_a_limit_that_falls_at_a_restart_becomes_a_warning(own_nats, connect):
    """A server that comes back with a lower limit is used, told about, and guarded against."""
    bus = await connect(own_nats)
    own_nats.kill()
    own_nats._max_payload = "1MB"
    await own_nats.start()
    await until(lambda: bus.warnings)
    assert bus.warnings == ("max_payload is 1048576 bytes",)


DENY = """
authorization {
  users: [
    { nkey: "%s", permissions: {
      publish: { allow: ["pdbus.v1.>", "_INBOX.>"] },
      subscribe: { allow: ["_INBOX.probe.>", "$SRV.>", "pdbus.v1.decode.mine.>"] } } }
  ]
}
"""


@pytest.fixture
def key(tmp_path):
    """A key pair: the file with the seed, and the public key."""
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
    seed = tmp_path / "probe.nk"
    seed.write_bytes(bytes(pair.seed))
    return str(seed), pair.public_key.decode()


async def test_a_denied_subscription_fails_where_it_is_made(key, metric):
    """NATS-14: the server denies asynchronously; serve and subscribe raise all the same."""
    seed, public = key
    async with nats_server(jetstream=False, extra=DENY % public) as server, Tasks() as tasks:
        bus = await open_bus(
            BusSettings(urls=(server.url,), nkey_seed_file=seed),
            SystemClock(),
            tasks,
            ServiceIdentity("probe", "0.1.0", InstanceId("probe-1")),
        )
        before = metric(names.BUS_PERMISSION_ERRORS.name, operation="subscription")
        with pytest.raises(Forbidden):
            await bus.subscribe("pdbus.v1.decode.YOURS.x", Abort, lambda _s, _m: None)
        with pytest.raises(Forbidden):
            await bus.serve(endpoint("pdbus.v1.router.place", queue="router"))
        await bus.subscribe("pdbus.v1.decode.mine.x", Abort, lambda _s, _m: None)
        assert len(bus.permission_errors) == 2
        assert metric(names.BUS_PERMISSION_ERRORS.name, operation="subscription") == before + 2
        await bus.close()


async def test_a_denied_publish_is_loud(key, metric):
    """NATS-14: it cannot fail at the caller, but it is counted, and readiness can see it."""
    seed, public = key
    async with nats_server(jetstream=False, extra=DENY % public) as server, Tasks() as tasks:
        bus = await open_bus(
            BusSettings(urls=(server.url,), nkey_seed_file=seed),
            SystemClock(),
            tasks,
            ServiceIdentity("probe", "0.1.0", InstanceId("probe-1")),
        )
        before = metric(names.BUS_PERMISSION_ERRORS.name, operation="publish")
        await bus.publish("other.subject", ABORT)
        await bus.link.barrier()
        assert bus.permission_errors == (
            'nats: permissions violation for publish to "other.subject"',
        )
        assert metric(names.BUS_PERMISSION_ERRORS.name, operation="publish") == before + 1
        assert bus.connected
        await bus.close()


async def test_a_service_that_may_not_hear_its_replies_does_not_start(key):
    """NATS-14: a denied inbox would make every request a timeout; it is fatal at the start."""
    seed, public = key
    async with nats_server(jetstream=False, extra=DENY % public) as server, Tasks() as tasks:
        with pytest.raises(Forbidden):
            await open_bus(
                BusSettings(urls=(server.url,), nkey_seed_file=seed),
                SystemClock(),
                tasks,
                ServiceIdentity("stranger", "0.1.0", InstanceId("stranger-1")),
            )


async def test_a_refused_key_ends_the_start_at_once(key, tmp_path):
    """Wrong or missing credentials are not retried until the deadline."""
    _, public = key
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))
    wrong = tmp_path / "wrong.nk"
    wrong.write_bytes(bytes(pair.seed))
    async with nats_server(jetstream=False, extra=DENY % public) as server, Tasks() as tasks:
        for seed in (None, str(wrong)):
            async with asyncio.timeout(5):
                with pytest.raises(BusNotStarted, match="refuses our credentials"):
                    await opened(
                        tasks, urls=(server.url,), nkey_seed_file=seed, startup_deadline_s=60
                    )
        (tmp_path / "bad.nk").write_text("no seed")
        for file in ("none", "bad.nk"):
            with pytest.raises(BusNotStarted, match="cannot connect"):
                await opened(tasks, urls=(server.url,), nkey_seed_file=str(tmp_path / file))


async def test_a_connection_says_who_it_is(own_nats, connect):
    """Name and inbox carry the service and the instance, for monitoring and permissions."""
    bus = await connect(own_nats, service="router")
    service, instance, version = bus.link.name.split("/")
    assert (service, version) == ("router", "0.1.0")
    assert bus.link.client.new_inbox().startswith(f"_INBOX.router.{instance}.")


async def test_a_lame_duck_is_left_early_when_there_is_another_server(connect):
    """On the server's notice the client moves; the server would cut it only after 20 s."""
    async with (
        nats_server(jetstream=False, extra='lame_duck_grace_period: "20s"') as duck,
        nats_server(jetstream=False) as other,
        Tasks() as tasks,
    ):
        bus = await opened(tasks, urls=(duck.url,))
        bus.link.client.set_server_pool([duck.url, other.url])
        duck.lame_duck()
        await until(lambda: bus.connected and bus.link.client.connected_url.port == other.port)
        await bus.close()
