"""What clients may see: right and complete answers, or typed errors, in time."""

from __future__ import annotations

from collections import defaultdict

from proto.errors import ErrorCode, spec_of
from tests.chaos.judge.evidence import Evidence, Verdict
from tests.chaos.load import Told

__all__ = ["check_clients", "outcome_of"]

_BOUND_S = 10.0
_REFUSED = 400


def outcome_of(told: Told) -> str:
    """Return one word for how a submission ended."""
    if told.refused:
        return "connection refused"
    if told.silent:
        return "silence"
    if told.left_ms is not None:
        return "left"
    if told.reply.claims_completeness:
        return "answered"
    if told.reply.error is not None:
        return f"error {told.reply.error['code']}"
    return "connection lost"


def check_clients(evidence: Evidence, verdict: Verdict) -> None:
    """I1, I2 and I8 as clients see them."""
    for told in evidence.told:
        _check_time(evidence, told, verdict)
        reply = told.reply
        if told.refused:
            _check_refused(evidence, told, verdict)
        elif reply.claims_completeness:
            _check_complete(evidence, told, verdict)
        elif reply.error is not None:
            _check_error(evidence, told, verdict)
        elif told.left_ms is None and not told.silent:
            _check_broken(evidence, told, verdict)
        if reply.is_stream and not evidence.right(told).text.startswith(reply.text):
            verdict.violate("I1", f"{_name(told)}: {reply.text!r} is not how the answer begins")
    _check_same(evidence, verdict)


def _check_time(evidence: Evidence, told: Told, verdict: Verdict) -> None:
    gateway = f"gateway-{told.manner.gateway}"
    stops = [s for s in evidence.strikes if s.kind == "stop service" and s.target == gateway]
    stopped_ms = sum(s.overlap_ms(told.sent_ms, told.ended_ms) for s in stops)
    spent_s = (told.ended_ms - told.sent_ms - stopped_ms) / 1000
    if told.silent or spent_s > evidence.deadline_s + _BOUND_S:
        verdict.violate("I2", f"{_name(told)}: no end after {spent_s:.1f} s")


def _check_refused(evidence: Evidence, told: Told, verdict: Verdict) -> None:
    gateway = f"gateway-{told.manner.gateway}"
    down = evidence.struck(told.sent_ms - 500, told.ended_ms, gateway, kinds=["kill gateway"])
    if not any(down):
        verdict.violate("ready", f"{_name(told)}: {gateway} took no connection")


def _check_complete(evidence: Evidence, told: Told, verdict: Verdict) -> None:
    reply, right = told.reply, evidence.right(told)
    if reply.text != right.text or reply.finish_reason != right.finish:
        seen = f"{reply.finish_reason} after {reply.text!r}"
        verdict.violate("I1", f"{_name(told)}: {seen}, and the answer is {right}")
    usage = _usage(told)
    if usage is not None and usage["completion_tokens"] != right.tokens:
        verdict.violate("I1", f"{_name(told)}: {usage} for {right.tokens} tokens")
    if reply.is_stream and (reply.events[-1:] != ["[DONE]"] or reply.error is not None):
        verdict.violate("I1", f"{_name(told)}: the stream goes on after its end, or has none")


def _check_error(evidence: Evidence, told: Told, verdict: Verdict) -> None:
    reply = told.reply
    code = (reply.error or {}).get("code")
    if code not in set(ErrorCode):
        verdict.violate("I2", f"{_name(told)}: {code!r} is in no table")
        return
    if code == ErrorCode.INTERNAL:
        verdict.violate("internal", f"{_name(told)}: internal error")
    if code == ErrorCode.IDEMPOTENCY_KEY_REUSED:
        verdict.violate("I8", f"{_name(told)}: the same body was taken for another one")
    if reply.finish_reason is not None or "[DONE]" in (reply.events if reply.is_stream else ()):
        verdict.violate("I1", f"{_name(told)}: failed with {code}, and claims to be complete")
    if not reply.is_stream and reply.status != spec_of(ErrorCode(code)).http:
        verdict.violate("I2", f"{_name(told)}: status {reply.status} for {code}")


def _check_broken(evidence: Evidence, told: Told, verdict: Verdict) -> None:
    """A connection may end without words only with its gateway."""
    gateway = f"gateway-{told.manner.gateway}"
    killed = evidence.struck(told.sent_ms, told.ended_ms + 500, gateway, kinds=["kill gateway"])
    if any(killed):
        return
    if told.reply.whole:
        verdict.violate("I1", f"{_name(told)}: ended without an end: {told.reply.body[-200:]!r}")
    elif told.manner.pace == "stuck":
        verdict.remark("stuck readers that were given up")
    elif told.manner.pace and told.reply.status >= _REFUSED:
        # The gateway refuses before it has read a body that comes in small segments.
        verdict.remark("refusals that the reset of an unread body has cut")
    else:
        verdict.violate("I2", f"{_name(told)}: the connection broke after {told.reply.status}")


def _check_same(evidence: Evidence, verdict: Verdict) -> None:
    """I8: all complete answers to one key are one answer."""
    answers: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for told in evidence.told:
        if told.ask.key is not None and told.reply.claims_completeness:
            answers[told.ask.key].add((told.rid, told.reply.text, str(_usage(told))))
    for key, seen in answers.items():
        if len(seen) > 1:
            verdict.violate("I8", f"{key}: {len(seen)} different answers: {seen}")


def _usage(told: Told) -> dict[str, int] | None:
    if not told.reply.is_stream:
        return told.reply.json.get("usage")
    found = [e["usage"] for e in told.reply.events if isinstance(e, dict) and e.get("usage")]
    return found[-1] if found else None


def _name(told: Told) -> str:
    ask, manner = told.ask, told.manner
    words = [f"ask {ask.number}", "stream" if ask.stream else "whole", f"gateway-{manner.gateway}"]
    words += [ask.key] if ask.key else []
    return f"[{' '.join(words)} {told.rid or told.trace}]"
