"""Orders to a supervisor over its socket."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from ops.cli.errors import CommandError
from ops.cli.stack.control import SOCKET, Order, give_order, take_orders

pytestmark = pytest.mark.integration

ORDER = Order(verb="restart", slot="decode-0")


async def give(place: Path, order: Order = ORDER) -> None:
    """Give an order as another process would: without holding up this loop."""
    await asyncio.to_thread(give_order, place, order)


async def test_an_order_arrives(tmp_path: Path) -> None:
    """What is asked for is what is obeyed, once, before the answer."""
    seen: list[Order] = []
    async with take_orders(tmp_path, seen.append):
        await give(tmp_path)
        assert seen == [ORDER]


async def test_a_refusal_comes_back(tmp_path: Path) -> None:
    """The reason of a refusal is what the user reads."""

    def refuse(order: Order) -> None:
        raise CommandError(f"there is no process {order.slot!r}")

    async with take_orders(tmp_path, refuse):
        with pytest.raises(CommandError, match="there is no process 'decode-0'"):
            await give(tmp_path)


async def test_long_folders_work(tmp_path: Path) -> None:
    """The name of a socket may have about a hundred characters; that of a folder has no limit."""
    place = tmp_path / ("deep" * 20) / ("deeper" * 20)
    place.mkdir(parents=True)
    seen: list[Order] = []
    async with take_orders(place, seen.append):
        await give(place)
    assert seen == [ORDER]


async def test_only_the_owner_may_give_orders(tmp_path: Path) -> None:
    """The socket is closed to other users, and gone after the end."""
    async with take_orders(tmp_path, lambda _: None):
        mode = (tmp_path / SOCKET).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) & 0o077 == 0
    assert not (tmp_path / SOCKET).exists()


async def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """After a kill the old socket is still there; the next supervisor takes its place."""
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / SOCKET))
    seen: list[Order] = []
    async with take_orders(tmp_path, seen.append):
        await give(tmp_path)
    assert seen == [ORDER]


async def test_nonsense_is_refused(tmp_path: Path) -> None:
    """What is no order is answered with a reason, and changes nothing."""
    seen: list[Order] = []
    async with take_orders(tmp_path, seen.append):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
        writer.write(b'{"verb":"explode","slot":"decode-0"}\n')
        assert b"not understood" in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert seen == []


async def test_nobody_there_is_told(tmp_path: Path) -> None:
    """Without a supervisor the command fails with one line."""
    with pytest.raises(CommandError, match="does not answer"):
        await give(tmp_path)
