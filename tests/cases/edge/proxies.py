"""Proxies in front of a gateway: the real nginx, and one of our own that buffers as it does."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Place", "connect", "find_nginx", "own_proxy", "real_nginx"]

Place = int | Path
"""Where something listens: a port on 127.0.0.1, or a socket of the file system."""

NGINX_BUFFER = 4096
_START_S = 10.0
_SYSTEM_PATHS = ("/usr/local/sbin", "/usr/sbin")

# Stock settings but for places and rights: buffering is on, and so is gzip.
_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    gzip on;
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen unix:{folder}/heeds;
        location / {{ proxy_pass http://127.0.0.1:{port}; }}
    }}
    server {{
        listen unix:{folder}/deaf;
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_ignore_headers X-Accel-Buffering;
        }}
    }}
}}
"""


async def connect(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection."""
    if isinstance(place, int):
        return await asyncio.open_connection("127.0.0.1", place)
    return await asyncio.open_unix_connection(place)


def find_nginx() -> str | None:
    """Return the program, also from where systems keep it out of users' paths."""
    paths = (os.environ.get("PATH", ""), *_SYSTEM_PATHS)
    return shutil.which("nginx", path=os.pathsep.join(paths))


@asynccontextmanager
async def real_nginx(port: int) -> AsyncIterator[tuple[Place, Place]]:
    """Run nginx in front of a port.

    Gives two places: one heeds the answer's wish about buffering, one does not.
    """
    program = find_nginx()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="pdbus-nginx-") as name:
        folder = Path(name)
        settings = folder / "nginx.conf"
        settings.write_text(_CONFIGURATION.format(folder=folder, port=port))
        process = await asyncio.create_subprocess_exec(
            program,
            *("-p", name, "-c", str(settings), "-e", "stderr"),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_START_S):
                await _listening(process, folder / "deaf")
            yield folder / "heeds", folder / "deaf"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def _listening(process: asyncio.subprocess.Process, place: Path) -> None:
    while True:
        try:
            _, writer = await connect(place)
        except OSError:
            if process.returncode is not None and process.stderr is not None:
                said = (await process.stderr.read()).decode()
                raise AssertionError(f"nginx ended: {said}") from None
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


@dataclass(slots=True)
class _Proxy:
    """What nginx does in front of a stream, with its stock settings.

    It asks in HTTP/1.0 with `connection: close`, and gathers what comes until a buffer is full or
    the answer ends, unless the answer says `x-accel-buffering: no`.
    """

    upstream: int
    heeds: bool
    """Whether it looks at the answer's wish."""
    heads: list[bytes] = field(default_factory=list[bytes])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
        body = await reader.readexactly(length)
        line, _, rest = head.partition(b"\r\n")
        back, forth = await connect(self.upstream)
        asked = line.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\nconnection: close\r\n" + rest
        forth.write(asked + body)
        answer = await back.readuntil(b"\r\n\r\n")
        self.heads.append(answer)
        writer.write(answer)
        at_once = self.heeds and b"\r\nx-accel-buffering: no\r\n" in answer.lower()
        held = b""
        while piece := await back.read(65536):
            held += piece
            if at_once or len(held) >= NGINX_BUFFER:
                writer.write(held)
                held = b""
        writer.write(held)
        writer.close()
        forth.close()


@asynccontextmanager
async def own_proxy(port: int) -> AsyncIterator[tuple[Place, Place]]:
    """Run the proxy of our own in front of a port; the places are those of `real_nginx`."""
    heeding, deaf = _Proxy(port, heeds=True), _Proxy(port, heeds=False)
    first = await asyncio.start_server(heeding.serve, "127.0.0.1", 0)
    second = await asyncio.start_server(deaf.serve, "127.0.0.1", 0)
    async with first, second:
        yield first.sockets[0].getsockname()[1], second.sockets[0].getsockname()[1]
        assert heeding.heads
        assert deaf.heads
