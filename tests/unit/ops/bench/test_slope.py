"""The cost of a token and of a request, taken apart."""

from __future__ import annotations

import pytest

from ops.bench.edge.slope import slope_of


def test_a_line_is_found_again():
    """What was put together from a price a token and one a request comes apart into both."""
    token, request = {"gateway": 12.5, "nats": 3.0}, {"gateway": 1700.0, "nats": 900.0}

    def load(tokens: int) -> dict[str, float]:
        return {part: request[part] + token[part] * tokens for part in token}

    found = slope_of((16, 384), (load(16), load(384)))
    assert found.token == pytest.approx(token)
    assert found.request == pytest.approx(request)
