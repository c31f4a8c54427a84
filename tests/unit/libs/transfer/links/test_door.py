from __future__ import annotations

import pytest

from libs.transfer.links.door import judge, layout_differences
from libs.transfer.wire import VERSION, Hello, WireLayout
from proto.errors import ErrorCode
from proto.kv import Lane

LAYOUT = WireLayout(page_bytes=(8, 8), row_bytes=(4,), page_tokens=16, compat="card")


def hello(**change: object) -> Hello:
    """Return a greeting that fits, changed."""
    fields = {
        "version": VERSION,
        "nonce": "n",
        "incarnation": "decode",
        "target": "prefill",
        "lane": Lane.SYSV,
        "worker": b"w",
        "host": "h",
        "pid": 1,
        "layout": LAYOUT,
        "slab_bytes": 100,
        "slots": 2,
    }
    return Hello(**{**fields, **change})


def test_a_greeting_that_fits_is_welcome() -> None:
    """Nothing is found against an equal layout."""
    assert judge(hello(), LAYOUT, "prefill", 100) is None


@pytest.mark.parametrize(
    ("change", "code", "phrase"),
    [
        ({"version": VERSION + 1}, ErrorCode.VERSION_MISMATCH, f"version: {VERSION} in prefill"),
        ({"target": "former"}, ErrorCode.PREFILL_LOST, "incarnation former is gone"),
        ({"slab_bytes": 99}, ErrorCode.VERSION_MISMATCH, "slab_bytes: at least 100"),
    ],
)
def test_a_greeting_that_does_not_fit_is_refused(
    change: dict[str, object], code: ErrorCode, phrase: str
) -> None:
    """The refusal is typed and names the field."""
    refusal = judge(hello(**change), LAYOUT, "prefill", 100)
    assert refusal is not None
    assert refusal.code is code
    assert phrase in refusal.detail


def test_every_difference_is_named() -> None:
    """All fields that differ are listed, with both values."""
    other = WireLayout(page_bytes=(8, 9), row_bytes=(), page_tokens=1, compat="other")
    assert layout_differences(LAYOUT, other) == [
        "page_tokens: 16 in prefill, 1 in decode",
        "compat: card in prefill, other in decode",
        "page_bytes[1]: 8 in prefill, 9 in decode",
        "row_bytes: 1 buffers in prefill, 0 in decode",
    ]
