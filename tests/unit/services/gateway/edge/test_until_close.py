"""Clients of HTTP/1.0: no chunks, and the end of the connection is the end of the answer."""

from __future__ import annotations

import pytest

from proto.errors import ErrorCode, PdbusError
from tests.unit.services.gateway.edge.test_server import connect, request, serving
from tests.unit.services.gateway.rig import Rig, then_fail

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


async def asked(rig: Rig, text: bytes) -> tuple[bytes, bytes]:
    """Ask as HTTP/1.0, read to the end of the connection; return head and body."""
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(text.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close" in head
    return head, body


async def test_a_stream_has_no_chunk_marks(rig: Rig):
    """The body is nothing but events, up to the last one."""
    _, body = await asked(rig, request(stream=True))
    assert body.endswith(b"data: [DONE]\n\n")
    assert all(line[:6] == b"data: " for line in body.split(b"\n\n") if line)


async def test_a_failed_stream_shows_its_error(rig: Rig):
    """An error after the first text is the last event, and no `[DONE]` follows."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.DECODE_LOST), "Hello")
    _, body = await asked(rig, request(stream=True))
    assert b'"code":"decode_lost"' in body.rstrip().rpartition(b"\n\n")[2]
    assert b"[DONE]" not in body


async def test_a_whole_answer_keeps_its_length(rig: Rig):
    """What has a length is sent as ever."""
    head, body = await asked(rig, request())
    assert b"\r\ncontent-length: %d\r\n" % len(body) in head + b"\r\n"
    assert body.startswith(b"{")
    assert body.endswith(b"}")


async def test_a_head_request_has_no_body(rig: Rig):
    """The length of what is not sent is told, and the connection ends."""
    _, body = await asked(rig, b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    assert body == b""
