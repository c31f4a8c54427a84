"""The engine without a system: an HTTP server that emits one token of each request a step.

    python -m ops.bench.edge.direct --step-ms 5.75 PORT_FILE

It computes nothing, checks nothing, and writes prepared bytes, so it is the floor that any edge is
measured from. One write a token, as an engine that streams would do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

__all__ = ["main"]

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    chunk: dict[str, Any] = {
        "id": "chatcmpl-00000000000000000000000000",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "direct",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_TOKEN = _chunk(_event({"content": " word"}, None))
_END = _chunk(_event({}, "length") + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    """Takes one request at a time."""

    def __init__(self, running: dict[_Connection, int], woken: asyncio.Event) -> None:
        self.transport: asyncio.Transport | None = None
        self._running = running
        self._woken = woken
        self._buffer = b""

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as TCP clients do
        self, transport: asyncio.Transport
    ) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._running.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, rest = head.lower().partition(b"content-length:")
        if len(body) < int(rest.split(b"\r\n", 1)[0]):
            return
        self._buffer = b""
        if self.transport is not None:
            self.transport.write(_HEAD)
        self._running[self] = int(json.loads(body)["max_tokens"])
        self._woken.set()


async def _steps(running: dict[_Connection, int], woken: asyncio.Event, step_s: float) -> None:
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        if not running:
            woken.clear()
            await woken.wait()
            due_s = loop.time()
        if step_s:
            due_s = max(due_s + step_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
        else:
            await asyncio.sleep(0)
        for connection, left in tuple(running.items()):
            if connection.transport is None:
                continue
            if left > 1:
                running[connection] = left - 1
                connection.transport.write(_TOKEN)
            else:
                del running[connection]
                connection.transport.write(_TOKEN + _END)


async def _serve(port_file: Path, step_s: float) -> None:
    running: dict[_Connection, int] = {}
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(running, woken), "127.0.0.1", 0)
    draft = port_file.with_suffix(".draft")
    draft.write_text(str(server.sockets[0].getsockname()[1]))
    draft.replace(port_file)
    await _steps(running, woken, step_s)


def main() -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port_file", type=Path)
    parser.add_argument("--step-ms", type=float, default=0.0)
    options = parser.parse_args()
    uvloop.run(_serve(options.port_file, options.step_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
