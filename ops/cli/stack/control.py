"""What other commands ask of a running supervisor, over a socket in the state folder.

One question and one answer a connection, each a line of JSON. The socket is reached through the
folder's own handle, because the name of a socket must be short and that of a folder may be long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Literal

import msgspec

from ops.cli.errors import CommandError

__all__ = ["Order", "give_order", "take_orders"]

SOCKET = "control.sock"
TIMEOUT_S = 5.0
_LIMIT = 4096


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of the stack is to do."""

    verb: Literal["restart"]
    slot: str
    """Name of the process."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the order is carried out."""

    error: str = ""
    """Why not; empty if it is."""


@contextlib.asynccontextmanager
async def take_orders(state_dir: Path, obey: Callable[[Order], None]) -> AsyncGenerator[None]:
    """Listen for the length of the context; `obey` raises CommandError for what it refuses."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                outcome = _obeyed(await reader.readline(), obey)
                writer.write(msgspec.json.encode(outcome) + b"\n")
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            # Whoever says nothing, too much, or leaves, gets no answer.
            pass
        finally:
            writer.close()

    with _place(state_dir) as path:
        server = await asyncio.start_unix_server(answer, sock=_listener(path), limit=_LIMIT)
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()
            (state_dir / SOCKET).unlink(missing_ok=True)


def give_order(state_dir: Path, order: Order) -> None:
    """Give an order to the supervisor of a stack; returns once it is accepted.

    Raises:
        CommandError: it is refused, or nobody answers.
    """
    with _place(state_dir) as path, socket.socket(socket.AF_UNIX) as link:
        link.settimeout(TIMEOUT_S)
        try:
            link.connect(path)
            link.sendall(msgspec.json.encode(order) + b"\n")
            with link.makefile("rb") as lines:
                outcome = msgspec.json.decode(lines.readline(_LIMIT), type=Outcome)
        except (OSError, msgspec.DecodeError) as error:
            message = f"the supervisor of the stack in {state_dir} does not answer: {error}"
            raise CommandError(message) from error
    if outcome.error:
        raise CommandError(outcome.error)


def _obeyed(line: bytes, obey: Callable[[Order], None]) -> Outcome:
    try:
        obey(msgspec.json.decode(line, type=Order))
    except CommandError as error:
        return Outcome(error=error.text)
    except msgspec.DecodeError as error:
        return Outcome(error=f"the order is not understood: {error}")
    return Outcome()


def _listener(path: str) -> socket.socket:
    # Whoever holds the lock of the folder owns the socket: one that is there is left over.
    Path(path).unlink(missing_ok=True)
    link = socket.socket(socket.AF_UNIX)
    # Only the user of the stack may give orders.
    before = os.umask(0o177)
    try:
        link.bind(path)
    finally:
        os.umask(before)
    return link


@contextlib.contextmanager
def _place(state_dir: Path) -> Generator[str]:
    handle = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)
