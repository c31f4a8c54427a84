"""Cards say what must be equal, and their short text says where two differ."""

from __future__ import annotations

import pytest

from proto.workers import CompatCard

FIELDS = CompatCard.__struct_fields__
CARD = CompatCard(
    model="m",
    revision="sha256:1",
    tokenizer="sha256:2",
    dtype="bfloat16",
    kv_dtype="bfloat16",
    kv_layout="nhd",
    page_size=16,
    layers=30,
    kv_heads=3,
    head_dim=64,
)


def changed(*names: str) -> CompatCard:
    """Return the card with some fields changed."""
    values = {name: getattr(CARD, name) for name in FIELDS}
    for name in names:
        values[name] = values[name] + 1 if isinstance(values[name], int) else "other"
    return CompatCard(**values)


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_counts_and_is_named_from_the_text_alone(field: str) -> None:
    """One changed field gives another digest, and the text of one card names it to the other."""
    other = changed(field)
    assert other.digest != CARD.digest
    assert CARD.mismatches(other.compat) == (field,)
    assert other.mismatches(CARD.compat) == CARD.differences(other) == (field,)


def test_several_fields_are_named_in_order() -> None:
    """All differences are told at once."""
    assert CARD.mismatches(changed("tp", "dtype").compat) == ("dtype", "tp")


def test_equal_cards_have_equal_texts() -> None:
    """A card that was made elsewhere of the same values fits."""
    assert CARD.mismatches(changed().compat) == ()


@pytest.mark.parametrize("text", ["", "c", CARD.digest, f"{CARD.compat}x", "z" * len(CARD.compat)])
def test_a_text_that_is_none_never_fits(text: str) -> None:
    """What another version says of its card, or nothing at all, is a mismatch."""
    assert CARD.mismatches(text)


def test_a_contrast_has_both_values() -> None:
    """The words for operators name field, value and side."""
    other = changed("page_size")
    assert CARD.contrast(other, "p-0", "d-0") == "page_size: 16 in p-0, 17 in d-0"
