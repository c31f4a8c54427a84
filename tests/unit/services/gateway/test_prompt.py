"""Ids of a prompt that are worked out when they are needed."""

from __future__ import annotations

from services.gateway.prompt import PromptIds


def test_ids_that_are_known():
    """They are there at once, and there are no more of them than there are."""
    ids = PromptIds(b"\1\0\0\0\2\0\0\0", most=9)
    assert ids.known
    assert (ids.tokens, ids.most) == (2, 2)


def test_ids_are_worked_out_once():
    """A bound is known before; whoever asks first waits, and nobody after."""
    worked: list[int] = []

    def work() -> bytes:
        worked.append(1)
        return bytes(8)

    ids = PromptIds(work, most=9)
    assert (ids.known, ids.most, worked) == (False, 9, [])
    ids.settle()
    assert (ids.known, ids.most, ids.tokens, ids.ids, worked) == (True, 2, 2, bytes(8), [1])
