"""The attempts of a worker, and which of a request is the newest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.worker.attempt import Attempt, AttemptTable
from proto.ids import Incarnation, InstanceId, Nonce, RequestId
from proto.prefill import ReplyTo

REPLY = ReplyTo(gateway=InstanceId("g"), incarnation=Incarnation("i"), nonce=Nonce("n"))
KEYS = st.tuples(st.sampled_from("abc"), st.integers(0, 4))


def attempt(key: tuple[str, int]) -> Attempt:
    """Return an attempt of a request."""
    return Attempt(RequestId(key[0]), key[1], REPLY, 0.0, 0.0)


@given(steps=st.lists(st.tuples(st.booleans(), KEYS), max_size=30))
def test_the_newest_attempt_is_what_a_search_would_find(steps: list[tuple[bool, tuple[str, int]]]):
    """However attempts come and go, in whatever order."""
    table = AttemptTable()
    for begins, key in steps:
        (table.add if begins else table.forget)(attempt(key))
        for rid in "abc":
            numbers = [number for request, number in table if request == rid]
            assert table.newest(RequestId(rid)) == max(numbers, default=-1)


def test_an_empty_table_is_equal_to_nothing():
    """What has been forgotten leaves nothing behind."""
    table = AttemptTable()
    table.add(attempt(("a", 1)))
    table.forget(attempt(("a", 1)))
    assert table == {}
    assert table._numbers == {}
