"""Whether a prefill and a decode worker may serve a request together, by their own words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proto.errors import ErrorCode
from proto.kv import Lane
from proto.pairs import LaneMode, PairReport, PairState
from proto.workers import Heartbeat, Role

__all__ = ["PairRefusal", "refusal_of", "refusals", "report_of", "warning_of"]


@dataclass(frozen=True, slots=True)
class PairRefusal:
    """Why a pair gets no work."""

    prefill: Heartbeat
    decode: Heartbeat
    code: ErrorCode
    detail: str
    """For operators: what differs, and what each side says."""
    fields: tuple[str, ...] = ()
    """The fields in which two cards differ."""
    lane: Lane = Lane.UNKNOWN


def report_of(prefill: Heartbeat, decode: Heartbeat) -> PairReport | None:
    """Return what the decode worker knows of its way to the prefill engine."""
    for report in decode.pairs:
        if report.peer == prefill.incarnation:
            return report
    return None


def refusal_of(prefill: Heartbeat, decode: Heartbeat) -> PairRefusal | None:
    """Return why two workers do not fit together, or None."""
    if prefill.card is None or decode.card is None:
        return PairRefusal(prefill, decode, ErrorCode.STARTING, "a card is missing")
    if prefill.card != decode.card:
        detail = prefill.card.contrast(decode.card, prefill.instance, decode.instance)
        fields = prefill.card.differences(decode.card)
        return PairRefusal(prefill, decode, ErrorCode.VERSION_MISMATCH, detail, fields)
    report = report_of(prefill, decode)
    lane = report.lane if report else Lane.UNKNOWN
    for side in (prefill, decode):
        if side.kv_lanes.mode is LaneMode.REQUIRE and side.kv_lanes.breached_by(lane):
            detail = _breach(prefill, decode, side, report)
            return PairRefusal(prefill, decode, ErrorCode.LANE_REFUSED, detail, lane=lane)
    if report is not None and report.state in {PairState.REFUSED, PairState.FAILED}:
        code = report.code or ErrorCode.LANE_REFUSED
        detail = f"{decode.instance} cannot reach {prefill.instance}: {report.detail}"
        return PairRefusal(prefill, decode, code, detail, lane=lane)
    return None


def warning_of(prefill: Heartbeat, decode: Heartbeat) -> str:
    """Return what is wrong with the lane of a pair that is used all the same, or nothing."""
    report = report_of(prefill, decode)
    lane = report.lane if report else Lane.UNKNOWN
    for side in (prefill, decode):
        if side.kv_lanes.mode is LaneMode.WARN and side.kv_lanes.breached_by(lane):
            return _breach(prefill, decode, side, report)
    return ""


def refusals(beats: Iterable[Heartbeat]) -> Iterator[PairRefusal]:
    """Go through the pairs among some workers that are refused; an unknown model is no pair."""
    known = [beat for beat in beats if beat.card is not None]
    for prefill in (beat for beat in known if beat.role is Role.PREFILL):
        for decode in (beat for beat in known if beat.role is Role.DECODE):
            refusal = refusal_of(prefill, decode)
            if refusal is not None and not _strangers(refusal):
                yield refusal


def _strangers(refusal: PairRefusal) -> bool:
    """Return whether two workers serve models that have nothing to do with each other."""
    return "model" in refusal.fields and refusal.fields != ("model",)


def _breach(
    prefill: Heartbeat, decode: Heartbeat, side: Heartbeat, report: PairReport | None
) -> str:
    lane = report.lane if report else Lane.UNKNOWN
    wanted = ", ".join(side.kv_lanes.lanes)
    verb = "requires" if side.kv_lanes.mode is LaneMode.REQUIRE else "wants"
    text = f"{prefill.instance} → {decode.instance}: lane {lane}, {side.instance} {verb} {wanted}"
    why = report.detail if report else "the pair was not probed yet"
    return f"{text} ({why})" if why else text
