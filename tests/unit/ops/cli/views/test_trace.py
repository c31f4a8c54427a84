"""Collecting a request's events."""

from __future__ import annotations

import pytest

from ops.cli.errors import CommandError
from ops.cli.views.trace import complete, gather, request_id
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

RID = RequestId("0" * 25 + "1")


def event(kind: EventKind, **data: str) -> Event:
    """Return an event of the request."""
    return Event(
        kind=kind,
        rid=RID,
        attempt=0,
        instance=InstanceId("gateway-aaaaaaaa"),
        at_ms=1,
        start_ms=1,
        data=data,
    )


@pytest.mark.parametrize("text", [RID, f"chatcmpl-{RID}", f"  {RID.upper()} \n"])
def test_both_forms_of_an_id_are_taken(text: str) -> None:
    """A user may paste the request id or the id of the answer."""
    assert request_id(text) == RID


@pytest.mark.parametrize("text", ["", "hello", "*" * 26, f"{RID}0"])
def test_what_is_no_id_is_refused(text: str) -> None:
    """Anything else is refused before the bus is asked, wildcards above all."""
    with pytest.raises(CommandError, match="no request id"):
        request_id(text)


async def test_the_proof_is_waited_for() -> None:
    """The story is complete when the request has ended and all its leases are proved free."""
    stored = [
        event(EventKind.REQUEST_ASSIGNED, mode="disaggregated"),
        event(EventKind.LEASE_FREED, side="src"),
        event(EventKind.REQUEST_DONE),
    ]
    reads = 0

    async def read(rid: RequestId) -> list[Event]:
        nonlocal reads
        reads += 1
        if reads == 3:
            stored.append(event(EventKind.LEASE_FREED, side="dst"))
        return list(stored)

    events = await gather(read, RID, settle_s=5)
    assert (reads, len(events)) == (3, 4)


def test_a_lost_attempt_needs_no_proof_of_what_it_never_took() -> None:
    """A request that failed before prefill took it is complete with the lease that did exist."""
    story = [
        event(EventKind.REQUEST_ASSIGNED, mode="disaggregated"),
        event(EventKind.REQUEST_FAILED),
        event(EventKind.LEASE_ENDED, side="dst"),
    ]
    assert not complete(story)
    assert complete([*story, event(EventKind.LEASE_FREED, side="dst")])


def test_a_running_request_is_not_complete() -> None:
    """Without a terminal event there is more to come."""
    assert not complete([event(EventKind.REQUEST_ACCEPTED)])


async def test_waiting_has_an_end() -> None:
    """An incomplete story is shown as it is."""

    async def read(rid: RequestId) -> list[Event]:
        return [event(EventKind.REQUEST_ACCEPTED)]

    assert len(await gather(read, RID, settle_s=0)) == 1


async def test_an_unknown_request_is_told() -> None:
    """A request without events is a plain failure."""

    async def read(rid: RequestId) -> list[Event]:
        return []

    with pytest.raises(CommandError, match="no event"):
        await gather(read, RID, settle_s=0)
