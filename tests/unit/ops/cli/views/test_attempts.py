"""Attempts in words."""

from __future__ import annotations

from ops.cli.views.attempts import attempts_of
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

RID = RequestId("0" * 25 + "1")


def event(kind: EventKind, attempt: int, at_ms: float, **data: str | int | bool) -> Event:
    """Return an event of the request."""
    return Event(
        kind=kind,
        rid=RID,
        attempt=attempt,
        instance=InstanceId("gateway-aaaaaaaa"),
        at_ms=at_ms,
        start_ms=at_ms,
        data=data,
    )


def assigned(attempt: int, decode: str, prefill: str = "prefill-a") -> Event:
    """Return the assignment of an attempt."""
    mode = "disaggregated" if prefill else "aggregated"
    data = {"mode": mode, "prefill": prefill, "decode": decode}
    return event(EventKind.REQUEST_ASSIGNED, attempt, attempt, **data)


def lost(attempt: int, emitted: int, final: str = "") -> Event:
    """Return what the gateway says of a lost attempt."""
    facts = {"code": "decode_lost", "emitted": emitted, "final": final}
    return event(EventKind.ATTEMPT_FAILED, attempt, attempt + 0.5, **facts)


def freed(attempt: int, side: str, *, ordered: bool = False) -> Event:
    """Return a proof."""
    facts = {"side": side, "evidence": "owner", "ordered": ordered}
    return event(EventKind.LEASE_FREED, attempt, 50, **facts)


def test_a_plain_request_has_one_attempt() -> None:
    """Workers, end and proofs stand in one line."""
    story = [
        freed(0, "dst"),
        assigned(0, "decode-b"),
        event(EventKind.REQUEST_DONE, 0, 9),
        freed(0, "src"),
    ]
    (attempt,) = attempts_of(story)
    assert attempt.where == "disaggregated prefill-a → decode-b"
    assert attempt.course == "done"
    assert attempt.freed == ("src freed (owner)", "dst freed (owner)")


def test_a_migration_tells_where_it_goes_on() -> None:
    """The first attempt says how far it came, the second one where it continues."""
    story = [
        assigned(0, "decode-b"),
        # The worker's own word carries no offset and is not taken for the loss.
        event(EventKind.ATTEMPT_FAILED, 0, 0.4, code="decode_lost"),
        lost(0, 44),
        assigned(1, "decode-c"),
        event(EventKind.REQUEST_DONE, 1, 9),
    ]
    first, second = attempts_of(story)
    assert first.course == "lost after 44 tokens: decode_lost"
    assert second.course == "continues at token 44, done"
    assert second.where == "disaggregated prefill-a → decode-c"


def test_a_retry_before_the_first_token_begins_anew() -> None:
    """Nothing was emitted, so nothing is continued."""
    story = [assigned(0, "decode-b"), lost(0, 0), assigned(1, "decode-c")]
    assert [a.course for a in attempts_of(story)] == [
        "lost after 0 tokens: decode_lost",
        "begins anew",
    ]


def test_a_final_loss_tells_why_there_is_no_other_one() -> None:
    """The refusal of another attempt is told, once."""
    story = [
        assigned(0, "decode-b"),
        lost(0, 3, "the policy is never"),
        event(EventKind.REQUEST_FAILED, 0, 9, code="decode_lost"),
    ]
    (attempt,) = attempts_of(story)
    assert attempt.course == ("lost after 3 tokens: decode_lost, no other one: the policy is never")


def test_missing_proofs_are_told() -> None:
    """A side that ended without proof, and one that nobody spoke of, are told apart."""
    story = [
        assigned(0, "decode-b"),
        event(EventKind.LEASE_ENDED, 0, 3, side="dst"),
        event(EventKind.REQUEST_CANCELLED, 0, 4, code="cancelled"),
    ]
    (attempt,) = attempts_of(story)
    assert attempt.freed == ("src without a word", "dst ended, not proved free")
    assert attempt.course == "cancelled (cancelled)"


def test_an_aggregated_attempt_has_one_side() -> None:
    """Without prefill only decode holds memory; a release that was ordered is told."""
    (attempt,) = attempts_of([assigned(0, "decode-b", ""), freed(0, "dst", ordered=True)])
    assert attempt.where == "aggregated decode-b"
    assert attempt.freed == ("dst freed (owner, by order)",)
