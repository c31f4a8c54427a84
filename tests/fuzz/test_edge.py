"""The edge under requests that nobody would write; `make fuzz-edge` sends ten times as many."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.fuzz.cases import fuzz
from tests.fuzz.served import served
from tests.unit.services.gateway.rig import MODEL

CASES = 2_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the HTTP side of a gateway."""
    with served(tmp_path_factory.mktemp("model")) as address:
        yield address


@pytest.mark.timeout(600)
def test_made_up_requests_get_described_answers(url: str):
    """2,000 cases from our description: no 5xx, no breach of a schema, nothing wrong accepted."""
    # A line a request would bury the report.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = fuzz(url, MODEL, cases=CASES, start=1)
    print("\n".join(report.lines()))
    assert report.faults == []
    assert report.server_errors == 0
    assert report.cases >= CASES
    answered = {path for path, _, status in report.statuses if status == 200}
    assert {"/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"} <= answered
