"""Token buckets under a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.tenants.bucket import Bucket


def test_a_full_bucket_gives_its_limit_at_once():
    """A minute's worth is there from the start, and not more."""
    bucket = Bucket(60, 0.0)
    assert [bucket.take(1, 0.0) for _ in range(60)] == [0.0] * 60
    assert bucket.left(0.0) == 0
    assert bucket.take(1, 0.0) == pytest.approx(1.0)


def test_it_fills_evenly():
    """What comes back in a second is a sixtieth of the limit; it is full after a minute."""
    bucket = Bucket(120, 0.0)
    bucket.take(120, 0.0)
    assert bucket.full_in_s(0.0) == pytest.approx(60.0)
    assert bucket.left(1.0) == 2
    assert bucket.left(30.0) == 60
    assert bucket.left(600.0) == 120
    assert bucket.full_in_s(600.0) == 0.0


def test_a_wait_is_exactly_as_long_as_it_says():
    """Who comes back after the wait that it was told gets what it wants; a little sooner not."""
    bucket = Bucket(90, 0.0)
    bucket.take(90, 0.0)
    wait_s = bucket.take(30, 5.0)
    assert wait_s == pytest.approx(15.0)
    assert bucket.take(30, 5.0 + wait_s - 0.1) > 0
    assert bucket.take(30, 5.0 + wait_s) == 0.0


def test_what_is_larger_than_the_bucket_waits_for_a_full_one_and_is_paid_for():
    """A share of a limit may be smaller than a prompt: the rate holds all the same."""
    bucket = Bucket(100, 0.0)
    assert bucket.take(250, 0.0) == 0.0
    assert bucket.left(0.0) == 0
    assert bucket.take(1, 60.0) > 0
    assert bucket.take(250, 149.0) == pytest.approx(1.0)
    assert bucket.take(250, 150.0) == 0.0


def test_a_changed_limit_forgets_nothing():
    """A higher limit gives the difference at once, a lower one takes it away."""
    bucket = Bucket(60, 0.0)
    bucket.take(50, 0.0)
    bucket.resize(100, 0.0)
    assert bucket.left(0.0) == 50
    bucket.resize(40, 0.0)
    assert bucket.left(0.0) == 0
    assert bucket.left(60.0) == 30


def test_time_that_goes_backwards_gives_nothing():
    """A clock that is set back neither fills nor empties."""
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.left(50.0) == 0
    assert bucket.left(101.0) == 1


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 90), st.integers(1, 20_000)), max_size=60),
)
def test_never_more_than_the_limit_and_one_more(limit: int, asks: list[tuple[float, int]]):
    """Over any time from the start: what was let through is bounded by rate, burst and one ask."""
    bucket, now, taken, largest = Bucket(limit, 0.0), 0.0, 0, 0
    for pause, amount in asks:
        now += pause
        if not bucket.take(amount, now):
            taken += amount
            largest = max(largest, amount)
        assert taken <= limit * (1 + now / 60) + largest + 1e-6 * limit
