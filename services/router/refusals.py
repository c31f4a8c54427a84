"""Tells the operator of pairs that get no work: once each time that the reason changes."""

from __future__ import annotations

from libs.fleet import Fleet, Member, PairRefusal, refusals
from libs.fleet.pairs import warning_of
from libs.telemetry import count, gauge, get_logger, names
from proto.ids import Incarnation
from proto.workers import Heartbeat, Role

__all__ = ["Refusals"]

_Pair = tuple[Incarnation, Incarnation]


class Refusals:
    """The pairs of the fleet that are refused, as this router last told of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._facts: dict[Incarnation, tuple[object, ...]] = {}
        self._told: dict[_Pair, str] = {}
        self._warned: set[str] = set()
        self._trouble = ""
        gauge(names.ROUTER_REFUSED_PAIRS, self._count)

    def heard(self, member: Member) -> None:
        """Look at all pairs again if what a worker says of itself has changed."""
        beat = member.heartbeat
        if beat.role not in {Role.PREFILL, Role.DECODE}:
            return
        facts = (beat.card, beat.kv_lanes, beat.pairs)
        if self._facts.get(beat.incarnation) != facts:
            self._facts[beat.incarnation] = facts
            self._look()

    def trouble(self) -> str:
        """Return why no pair at all gets work, by the example of one, or nothing."""
        return self._trouble

    def _count(self) -> int:
        return len(self._told)

    def _look(self) -> None:
        beats = [member.heartbeat for member in self._fleet.members(Role.PREFILL, Role.DECODE)]
        living = {beat.incarnation for beat in beats}
        self._facts = {name: facts for name, facts in self._facts.items() if name in living}
        found = {_pair(refusal): refusal for refusal in refusals(beats)}
        for pair, refusal in found.items():
            if self._told.get(pair) != refusal.detail:
                _tell(refusal)
        self._told = {pair: refusal.detail for pair, refusal in found.items()}
        prefills = sum(beat.role is Role.PREFILL for beat in beats)
        pairs = prefills * (len(beats) - prefills)
        self._trouble = (
            f"all {pairs} pairs are refused: {min(self._told.values())}"
            if found and len(found) == pairs
            else ""
        )
        self._warn(beats)

    def _warn(self, beats: list[Heartbeat]) -> None:
        warnings = {
            text
            for prefill in beats
            if prefill.role is Role.PREFILL
            for decode in beats
            if decode.role is Role.DECODE and (text := warning_of(prefill, decode))
        }
        for text in sorted(warnings - self._warned):
            get_logger().warning("pair is on an unwanted lane", detail=text)
        self._warned = warnings


def _pair(refusal: PairRefusal) -> _Pair:
    return refusal.prefill.incarnation, refusal.decode.incarnation


def _tell(refusal: PairRefusal) -> None:
    count(names.KV_PAIR_REFUSALS, lane=str(refusal.lane), error_code=str(refusal.code))
    get_logger().warning(
        "pair refused",
        prefill=refusal.prefill.instance,
        decode=refusal.decode.instance,
        code=str(refusal.code),
        fields=refusal.fields,
        detail=refusal.detail,
    )
