"""Makes up cases from the description, sends them, and judges each answer.

Half of the cases are right by the description and half are wrong by it. No answer may be a 5xx,
undescribed, or other than its schema, ours or OpenAI's; what is wrong must be refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.mending import mended
from tests.support.checked.answers import AnswerCheck, SchemaBreach

__all__ = ["Report", "fuzz"]

WEIGHTS = {
    "/v1/chat/completions": 24,
    "/v1/completions": 18,
    "/v1/responses": 20,
    "/tokenize": 14,
    "/detokenize": 14,
    "/v1/models": 5,
    "/v1/models/{model}": 5,
}
"""How many of a hundred cases go to a path."""
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
PART = 250
"""Cases that are made up in one go."""
KEPT = 20
"""Faults that are told in full."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
_BAD, _TOO_LARGE = 500, 413
_MOST_EVENTS = 1_000_000
_SHOWN = 1500
"""Characters of a case and of its fault that are told."""


@dataclass(slots=True)
class Report:
    """What was sent and what came of it."""

    statuses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By path, mode and status."""
    faults: list[str] = field(default_factory=list[str])
    broken: int = 0
    """Answers with a fault."""

    @property
    def cases(self) -> int:
        """All that were sent."""
        return self.statuses.total()

    @property
    def server_errors(self) -> int:
        """Answers of 500 and above."""
        return sum(n for (_, _, status), n in self.statuses.items() if status >= _BAD)

    def lines(self) -> list[str]:
        """Return the figures, one line a path and mode."""
        rows: dict[tuple[str, str], Counter[int]] = {}
        for (path, mode, status), count in sorted(self.statuses.items()):
            rows.setdefault((path, mode), Counter())[status] += count
        found = [
            f"{path:24} {mode:8} {counts.total():6} cases: "
            + ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()))
            for (path, mode), counts in rows.items()
        ]
        total = f"{self.cases} cases, {self.server_errors} x 5xx, {self.broken} breaches"
        return [*found, total]


def fuzz(url: str, model: str, *, cases: int, start: int) -> Report:
    """Send so many cases to a gateway.

    Args:
        url: its address.
        model: a model that it serves.
        start: seed; the same one makes the same cases.
    """
    report = Report()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    # Streams of many choices are long, and their ends are what is looked at.
    schema.config.max_stream_events = _MOST_EVENTS
    found = {one.ok().path: one.ok() for one in schema.get_all_operations()}
    shares = {path: weight for path, weight in WEIGHTS.items() if path in found}
    with requests.Session() as session:
        for path, weight in shares.items():
            wanted = -(-cases * weight // sum(shares.values()))
            # Nothing can be wrong about a request without a body.
            modes = MODES if found[path].method == "post" else MODES[:1]
            judge = _Judge(session, report, model)
            for mode in modes:
                _some(found[path], mode, judge, -(-wanted // len(modes)), start)
    return report


def _some(operation: Any, mode: GenerationMode, judge: _Judge, wanted: int, start: int) -> None:
    made = operation.as_strategy(generation_mode=mode)
    for number in itertools.count():
        before = judge.report.cases
        left = min(PART, wanted)

        @seed(start * 10_007 + number)
        @settings(
            max_examples=left,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(made, st.integers(0, 9))
        def part(case: Any, dice: int) -> None:
            judge.send(case, mode, dice)

        part()
        wanted -= judge.report.cases - before
        if wanted <= 0:
            return


@dataclass(slots=True)
class _Judge:
    session: requests.Session
    report: Report
    model: str

    def send(self, case: Any, mode: GenerationMode, dice: int) -> None:
        """Send a case; most of those that are right are made likely to be carried out."""
        path = case.operation.path
        if mode is GenerationMode.POSITIVE and dice:
            if case.operation.method == "post":
                case.body = mended(path, case.body, self.model)
            elif case.path_parameters:
                case.path_parameters["model"] = self.model
        response = case.call(session=self.session)
        self.report.statuses[path, mode.value, response.status_code] += 1
        # A body can be so wrong that it is too large to be read.
        large = response.status_code == _TOO_LARGE
        checks = [one for one in CHECKS if not (large and one is negative_data_rejection)]
        try:
            case.validate_response(response, checks=checks)
            self._openai(case, response)
        except FailureGroup as group:
            self._fault(case, "; ".join(str(one) for one in group.exceptions))
        except SchemaBreach as breach:
            self._fault(case, str(breach))

    def _openai(self, case: Any, response: Any) -> None:
        kind = response.headers.get("content-type", [""])[0]
        path = case.operation.path.replace("{model}", "any")
        AnswerCheck(path).feed(response.status_code, kind, response.content, whole=True)

    def _fault(self, case: Any, text: str) -> None:
        self.report.broken += 1
        if len(self.report.faults) < KEPT:
            self.report.faults.append(f"{case.as_curl_command()[:_SHOWN]}\n{text[:_SHOWN]}")
