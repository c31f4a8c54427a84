"""The size of headers, as the server counts it."""

from __future__ import annotations

import pytest

from libs.bus.wire import header_bytes


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        (None, 0),
        ({}, 0),
        ({"a": "b"}, len(b"NATS/1.0\r\na: b\r\n\r\n")),
        ({"a": "b", "cc": ""}, len(b"NATS/1.0\r\na: b\r\ncc: \r\n\r\n")),
        ({"ä": "ö"}, len("NATS/1.0\r\nä: ö\r\n\r\n".encode())),
    ],
)
def test_headers_are_counted_as_they_stand_on_the_wire(headers, size):
    """Names, values and line ends count, in bytes and not in characters."""
    assert header_bytes(headers) == size
