from __future__ import annotations

import pytest

from libs.engine.script.memory import KvMemory
from libs.engine.script.plane import layout_of
from libs.engine.script.settings import ScriptOptions
from libs.engine.scripted import card_of, vocabulary_of
from libs.transfer.links.door import judge, layout_differences, wire_layout
from libs.transfer.wire import VERSION, Hello, WireLayout
from proto.errors import ErrorCode
from proto.kv import Lane
from proto.workers import CompatCard
from tests.support.engines import host_options

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


def card(**changes: object) -> CompatCard:
    """Return the card of a scripted engine, changed."""
    options = host_options(script=ScriptOptions(claims=dict(changes)))
    return card_of(options, vocabulary_of(options))


@pytest.mark.parametrize("field", CompatCard.__struct_fields__)
def test_a_field_of_the_card_that_differs_is_named(field: str) -> None:
    """Two engines that differ in one field of their cards, whichever, are kept apart by it."""
    memory = KvMemory(pages=2, page_size=4, buffers=4, words=2, rows=1, places=8)
    mine = card()
    value = getattr(mine, field)
    theirs = card(**{field: value + 1 if isinstance(value, int) else "other"})
    here, there = (wire_layout(layout_of(memory, one)) for one in (mine, theirs))
    refusal = judge(hello(layout=there), here, "prefill", 100)
    assert refusal is not None
    assert refusal.code is ErrorCode.VERSION_MISMATCH
    assert refusal.detail == f"{field}: {value} in prefill, {getattr(theirs, field)} in decode"
