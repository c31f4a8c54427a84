"""Which places exist for a request: alive, of the right model, compatible. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.fleet import Fleet, Member, PairRefusal, refusal_of, refusals
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation
from proto.ledger import Mode
from proto.router import Place
from proto.workers import Heartbeat, Role
from services.router.policies import Candidate

__all__ = ["Pending", "candidates"]

_MOST_KNOWN = 1024


@dataclass(slots=True)
class Pending:
    """Work placed by this router that the workers' heartbeats do not show yet.

    Without it, all requests between two heartbeats would see the same idle worker. It also knows
    whose turn it is among workers that are equally busy.
    """

    _attempts: dict[Incarnation, int] = field(default_factory=dict[Incarnation, int])
    _tokens: dict[Incarnation, int] = field(default_factory=dict[Incarnation, int])
    _last: dict[Incarnation, int] = field(default_factory=dict[Incarnation, int])
    """Number of the last placement on each worker; the longest unused one is in front."""
    _placed: int = 0

    def add(self, candidate: Candidate, prompt_tokens: int) -> None:
        """Count an attempt that was just placed."""
        self._placed += 1
        decode = candidate.decode.incarnation
        self._attempts[decode] = self._attempts.get(decode, 0) + 1
        self._use(decode)
        if candidate.prefill is not None:
            prefill = candidate.prefill.incarnation
            self._tokens[prefill] = self._tokens.get(prefill, 0) + prompt_tokens
            self._use(prefill)

    def heard(self, incarnation: Incarnation) -> None:
        """Forget what the newest heartbeat of a worker shows by itself."""
        self._attempts.pop(incarnation, None)
        self._tokens.pop(incarnation, None)

    def attempts(self, incarnation: Incarnation) -> int:
        """Return the attempts placed since the last heartbeat."""
        return self._attempts.get(incarnation, 0)

    def tokens(self, incarnation: Incarnation) -> int:
        """Return the prompt tokens placed since the last heartbeat."""
        return self._tokens.get(incarnation, 0)

    def last(self, incarnation: Incarnation) -> int:
        """Return the number of the last placement on a worker; 0 if there was none."""
        return self._last.get(incarnation, 0)

    def _use(self, incarnation: Incarnation) -> None:
        self._last.pop(incarnation, None)
        self._last[incarnation] = self._placed
        if len(self._last) > _MOST_KNOWN:
            # Incarnations come and go: the one that was used longest ago is gone.
            del self._last[next(iter(self._last))]


def candidates(ask: Place, fleet: Fleet, pending: Pending, now_s: float) -> list[Candidate]:
    """Return every place where the attempt could run.

    Raises:
        PdbusError: no_worker if workers are missing; version_mismatch, naming the fields, or
            lane_refused, naming the lanes, if workers are there but no two of them fit together.
    """

    def serving(*roles: Role) -> list[Heartbeat]:
        return [m.heartbeat for m in fleet.usable(now_s, *roles) if _serves(m, ask.model)]

    prefills, decodes = serving(Role.PREFILL), serving(Role.DECODE)
    pairs = [(p, d) for p in prefills for d in decodes if refusal_of(p, d) is None]
    split = [_candidate(d, p, pending) for p, d in pairs]
    whole = [_candidate(d, None, pending) for d in serving(Role.AGGREGATED)]
    if ask.mode is Mode.DISAGGREGATED:
        found = split
    elif ask.mode is Mode.AGGREGATED:
        found = whole
    else:
        found = split or whole
    if not found:
        everyone = [m.heartbeat for m in fleet.usable(now_s, Role.PREFILL, Role.DECODE)]
        raise _nothing(ask, prefills, decodes, everyone)
    # A worker that failed an earlier attempt is used again only where there is no other.
    suspects = {ref.incarnation for ref in ask.exclude}
    return [c for c in found if not _uses(c, suspects)] or found


def _serves(member: Member, model: str) -> bool:
    beat = member.heartbeat
    return beat.card is not None and beat.card.model == model


def _uses(candidate: Candidate, incarnations: set[Incarnation]) -> bool:
    if candidate.decode.incarnation in incarnations:
        return True
    return candidate.prefill is not None and candidate.prefill.incarnation in incarnations


def _candidate(decode: Heartbeat, prefill: Heartbeat | None, pending: Pending) -> Candidate:
    return Candidate(
        decode=decode,
        compat=decode.card.compat if decode.card else "",
        prefill=prefill,
        decode_pending=pending.attempts(decode.incarnation),
        prefill_pending_tokens=pending.tokens(prefill.incarnation) if prefill else 0,
    )


def _nothing(
    ask: Place,
    prefills: Sequence[Heartbeat],
    decodes: Sequence[Heartbeat],
    everyone: Sequence[Heartbeat],
) -> PdbusError:
    if ask.mode is Mode.AGGREGATED:
        return PdbusError(ErrorCode.NO_WORKER, "no aggregated worker", retry_after_s=1)
    refused = [r for p in prefills for d in decodes if (r := refusal_of(p, d)) is not None]
    # Workers that differ in the name of their model only are meant for each other.
    refused = refused or [
        refusal
        for refusal in refusals(everyone)
        if refusal.fields == ("model",) and _is_about(refusal, ask.model)
    ]
    if refused:
        return _refused(refused)
    missing = "prefill" if not prefills else "decode"
    return PdbusError(ErrorCode.NO_WORKER, f"no {missing} worker is ready", retry_after_s=1)


def _is_about(refusal: PairRefusal, model: str) -> bool:
    return any(
        b.card is not None and b.card.model == model for b in (refusal.prefill, refusal.decode)
    )


def _refused(refused: Sequence[PairRefusal]) -> PdbusError:
    lanes = [refusal for refusal in refused if not refusal.fields]
    if lanes:
        # Where cards fit somewhere, it is the lane that keeps the model from being served.
        return PdbusError(lanes[0].code, lanes[0].detail, retry_after_s=5)
    fields = sorted({name for refusal in refused for name in refusal.fields})
    detail = f"prefill and decode differ in {', '.join(fields)} ({refused[0].detail})"
    return PdbusError(ErrorCode.VERSION_MISMATCH, detail, retry_after_s=5)
