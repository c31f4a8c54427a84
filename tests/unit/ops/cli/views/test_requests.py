"""Requests as a table."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from ops.cli.views.requests import age, request_table
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId, RequestId, Room, TenantHash
from proto.ledger import (
    Cleaned,
    Mode,
    Placement,
    RequestRecord,
    RequestState,
    Sink,
    Usage,
)
from proto.workers import Role, WorkerRef

NOW_MS = 1_700_000_000_000


def ref(role: Role, name: str) -> WorkerRef:
    """Return the address of a worker."""
    return WorkerRef(role=role, instance=InstanceId(name), incarnation=Incarnation("1" * 16))


def placement(prefill: bool = True) -> Placement:
    """Return where an attempt runs."""
    return Placement(
        attempt=0,
        mode=Mode.DISAGGREGATED if prefill else Mode.AGGREGATED,
        decode=ref(Role.DECODE, "decode-bbbbbbbb"),
        prefill=ref(Role.PREFILL, "prefill-aaaaaaaa") if prefill else None,
        room=Room(1),
        compat="c",
    )


def record(**fields: Any) -> RequestRecord:
    """Return a request that was accepted two seconds ago."""
    values = {
        "rid": RequestId("0" * 26),
        "tenant": TenantHash("0" * 16),
        "model": "tiny",
        "state": RequestState.ACCEPTED,
        "attempt": -1,
        "sink": Sink(gateway=InstanceId("gateway-cccccccc"), incarnation=Incarnation("2" * 16)),
        "digest": "d",
        "deadline_ms": NOW_MS + 1,
        "created_ms": NOW_MS - 2000,
    }
    return RequestRecord(**(values | fields))


def cells(one: RequestRecord) -> list[str]:
    """Return the words of a request's line."""
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(request_table([one], NOW_MS))
    return capture.get().splitlines()[1].split()


def test_a_request_without_a_place_shows_only_its_state() -> None:
    """What has not been decided yet stays empty."""
    assert cells(record()) == ["0" * 26, "2.0s", "accepted"]


def test_a_running_request_shows_its_workers_and_nothing_freed() -> None:
    """Attempt, mode and both workers are told; `freed` waits for the end."""
    state = RequestState.STREAMING
    line = cells(record(state=state, attempt=1, placement=placement()))
    assert line[2:] == ["streaming", "1", "disaggregated", "prefill-aaaaaaaa", "decode-bbbbbbbb"]


@pytest.mark.parametrize(
    ("cleaned", "words"),
    [
        (Cleaned(), ["none"]),
        (Cleaned(src=True), ["src"]),
        (Cleaned(src=True, dst=True), ["src", "dst"]),
    ],
)
def test_an_ended_request_tells_tokens_and_what_is_proved_free(
    cleaned: Cleaned, words: list[str]
) -> None:
    """Prompt and answer tokens, and the sides that are proved free."""
    done = record(
        state=RequestState.DONE,
        attempt=0,
        placement=placement(prefill=False),
        usage=Usage(prompt_tokens=7, completion_tokens=3),
        cleaned=cleaned,
    )
    assert cells(done)[2:] == ["done", "0", "aggregated", "decode-bbbbbbbb", "7+3", *words]


def test_a_failure_tells_code_and_cause() -> None:
    """The error code and what is known of it stand at the end."""
    failed = record(state=RequestState.FAILED, error=ErrorCode.NO_WORKER, detail="none is ready")
    assert " ".join(cells(failed)[3:]) == "none no_worker: none is ready"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(-5, "0.0s"), (1234, "1.2s"), (61_000, "1m01s"), (3_599_000, "59m59s"), (7_500_000, "2h05m")],
)
def test_ages_are_short(milliseconds: int, text: str) -> None:
    """A span is told in its coarsest useful unit."""
    assert age(milliseconds) == text
