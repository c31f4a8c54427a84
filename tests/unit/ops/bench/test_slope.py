"""The cost of a token and of a request, taken apart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ops.bench.edge.slope import Slope, slope_of, table_of
from ops.bench.edge.target import kernel_seconds, sleeps


def test_a_line_is_found_again():
    """What was put together from a price a token and one a request comes apart into both."""
    token, request = {"gateway": 12.5, "nats": 3.0}, {"gateway": 1700.0, "nats": 900.0}

    def load(tokens: int) -> dict[str, float]:
        return {part: request[part] + token[part] * tokens for part in token}

    found = slope_of((16, 384), (load(16), load(384)))
    assert found.token == pytest.approx(token)
    assert found.request == pytest.approx(request)


def test_the_table_shows_medians_and_their_sum():
    """Each part has a line with the middle of its values, and the last line adds them up."""
    found = [
        {
            kind: Slope({"gateway": value, "nats": 2.0}, {"gateway": 10 * value, "nats": 5.0})
            for kind in ("CPU us", "kernel us", "waits")
        }
        for value in (1.0, 3.0, 400.0)
    ]
    gateway, _, whole = table_of(found)[2:]
    assert gateway.split() == ["gateway", *["3.00"] * 3, *["30.0"] * 3]
    assert whole.split() == ["all", *["5.00"] * 3, *["35.0"] * 3]


def test_work_of_the_kernel_and_waits_are_counted():
    """What a process asks of the kernel counts as its work, and each sleep as a wait."""
    own = os.getpid()
    before = kernel_seconds(own), sleeps(own)
    while kernel_seconds(own) - before[0] < 0.02:
        Path("/proc/self/maps").read_bytes()
    for _ in range(50):
        time.sleep(0.0005)
    assert sleeps(own) - before[1] >= 50
