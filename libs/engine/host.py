"""The engine host: a child process that runs one engine in its main thread.

    python -m libs.engine.host --fd N --parent PID --options JSON

It serves one connection, on an inherited socket. When the socket closes, the service is gone: the
host ends its whole process group. It imports no telemetry: what it has to say goes to the service
in messages, and what nobody could receive goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import uvloop

from libs.engine.api import EngineDead
from libs.engine.channel import ChannelClosed, frames, open_host_end
from libs.engine.options import HostOptions
from libs.engine.registry import build
from libs.engine.serve import Ended, Serving
from proto.base import Message, encode
from proto.host import HostFailed, HostProgress

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_STOP_S = 5.0
"""Most time that an engine gets to end in order."""
_ORPHAN_STOP_S = 1.0
"""The same when the service is gone and nobody waits."""
_FLUSH_S = 1.0
_SWITCH_S = 0.0005
"""How long a busy Python thread may keep the interpreter from the data plane's thread. With the
default of 5 ms each step of a transfer waits that long behind a running scheduler. Forked children
inherit it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the host; it leaves by ending its process."""
    parser = argparse.ArgumentParser(prog="libs.engine.host")
    parser.add_argument("--fd", type=int, required=True, help="connected socket")
    parser.add_argument("--parent", type=int, required=True, help="process id of the service")
    parser.add_argument("--options", required=True, help="HostOptions as JSON")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    sock = socket.socket(fileno=given.fd)
    sock.set_inheritable(False)
    _die_with(given.parent)
    threading.Thread(target=_watch, args=(given.fd,), name="socket watch", daemon=True).start()
    _leave(_run(sock, HostOptions.from_json(given.options)))


def _run(sock: socket.socket, options: HostOptions) -> Ended:
    _tell(sock, HostProgress(text=f"loading the {options.kind} engine"))
    try:
        engine, loop = build(options)
    except EngineDead as error:
        _tell(sock, HostFailed(detail=str(error)))
        return Ended.FAILED
    own = loop if loop is not None else uvloop.new_event_loop()
    serving = Serving(engine, stop_s=_STOP_S, orphan_stop_s=_ORPHAN_STOP_S)
    return own.run_until_complete(_serve(serving, sock))


async def _serve(serving: Serving, sock: socket.socket) -> Ended:
    channel = await open_host_end(sock)
    ended = await serving.run(channel)
    channel.flush()
    with suppress(ChannelClosed, TimeoutError):  # nobody is left to read it
        async with asyncio.timeout(_FLUSH_S):
            await channel.drain()
    channel.close()
    return ended


def _tell(sock: socket.socket, message: Message) -> None:
    """Send a message before there is a loop."""
    with suppress(ConnectionError):  # the watch ends the process
        sock.sendall(frames([encode(message)]))


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before the kernel was asked
        _kill_group()


def _watch(fd: int) -> None:
    """End everything soon after the service closed its end, whatever the main thread does."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    time.sleep(_ORPHAN_STOP_S * 2)
    _kill_group()


def _kill_group() -> None:
    """End this process, and all it has started if it leads its group."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(ended: Ended) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if ended is Ended.ORPHANED:
        _kill_group()
    os._exit(0 if ended is Ended.STOPPED else 1)


if __name__ == "__main__":
    main()
