"""Which places exist for a request: alive, of the right model, compatible. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.fleet import SUSPECT_S, Fleet, Member, PairRefusal, refusal_of, refusals
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation
from proto.ledger import Mode
from proto.router import Place
from proto.workers import Heartbeat, Role
from services.router.policies import Candidate

__all__ = ["Pending", "Places"]

_MOST_KNOWN = 1024
_MOST_MODELS = 64


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

    def take_back(self, candidate: Candidate, prompt_tokens: int) -> None:
        """Forget an attempt that was counted and not placed; its worker keeps its turn as used."""
        decode = candidate.decode.incarnation
        _reduce(self._attempts, decode, 1)
        if candidate.prefill is not None:
            _reduce(self._tokens, candidate.prefill.incarnation, prompt_tokens)

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


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The workers of one model that can be used now, each with whom it fits; by name."""

    version: int
    """Of the fleet."""
    until_s: float
    """When the first of them has been silent for too long."""
    prefills: list[Heartbeat]
    decodes: list[Heartbeat]
    pairs: list[tuple[Heartbeat, Heartbeat | None]]
    """Decode and prefill."""
    alone: list[tuple[Heartbeat, Heartbeat | None]]
    """Workers that compute prompts themselves."""


class Places:
    """Where attempts could run: who fits together is looked at again when somebody is heard.

    Args:
        fleet: who lives.
        pending: what was placed since they were heard.
    """

    def __init__(self, fleet: Fleet, pending: Pending) -> None:
        self._fleet = fleet
        self._pending = pending
        self._fitting: dict[str, _Fitting] = {}
        """By model."""

    def find(self, ask: Place, now_s: float) -> list[Candidate]:
        """Return every place where the attempt could run, by the names of its workers.

        Raises:
            PdbusError: no_worker if workers are missing; version_mismatch, naming the fields, or
                lane_refused, naming the lanes, if workers are there but no two of them fit
                together.
        """
        fitting = self._fitting.get(ask.model)
        if fitting is None or fitting.version != self._fleet.version or now_s >= fitting.until_s:
            fitting = self._look(ask.model, now_s)
        if ask.mode is Mode.DISAGGREGATED:
            chosen = fitting.pairs
        elif ask.mode is Mode.AGGREGATED:
            chosen = fitting.alone
        else:
            chosen = fitting.pairs or fitting.alone
        if not chosen:
            members = self._fleet.usable(now_s, Role.PREFILL, Role.DECODE)
            everyone = [member.heartbeat for member in members]
            raise _nothing(ask, fitting.prefills, fitting.decodes, everyone)
        found = [self._candidate(decode, prefill) for decode, prefill in chosen]
        if not ask.exclude:
            return found
        # A worker that failed an earlier attempt is used again only where there is no other.
        suspects = {ref.incarnation for ref in ask.exclude}
        return [each for each in found if not _uses(each, suspects)] or found

    def _look(self, model: str, now_s: float) -> _Fitting:
        serving: dict[Role, list[Heartbeat]] = {
            Role.PREFILL: [],
            Role.DECODE: [],
            Role.AGGREGATED: [],
        }
        until_s = float("inf")
        for member in self._fleet.usable(now_s, *serving):
            if _serves(member, model):
                serving[member.heartbeat.role].append(member.heartbeat)
                until_s = min(until_s, member.heard_s + SUSPECT_S)
        prefills, decodes, alone = (sorted(beats, key=_name) for beats in serving.values())
        fitting = _Fitting(
            version=self._fleet.version,
            until_s=until_s,
            prefills=prefills,
            decodes=decodes,
            pairs=[(d, p) for d in decodes for p in prefills if refusal_of(p, d) is None],
            alone=[(decode, None) for decode in alone],
        )
        if len(self._fitting) >= _MOST_MODELS:
            # Whoever asks may name any model.
            self._fitting.clear()
        self._fitting[model] = fitting
        return fitting

    def _candidate(self, decode: Heartbeat, prefill: Heartbeat | None) -> Candidate:
        pending = self._pending
        return Candidate(
            decode=decode,
            compat=decode.card.compat if decode.card else "",
            prefill=prefill,
            decode_pending=pending.attempts(decode.incarnation),
            prefill_pending_tokens=pending.tokens(prefill.incarnation) if prefill else 0,
        )


def _reduce(counted: dict[Incarnation, int], whose: Incarnation, number: int) -> None:
    # A heartbeat in between has emptied the count.
    left = counted.pop(whose, 0) - number
    if left > 0:
        counted[whose] = left


def _name(beat: Heartbeat) -> str:
    return beat.incarnation


def _serves(member: Member, model: str) -> bool:
    beat = member.heartbeat
    return beat.card is not None and beat.card.model == model


def _uses(candidate: Candidate, incarnations: set[Incarnation]) -> bool:
    if candidate.decode.incarnation in incarnations:
        return True
    return candidate.prefill is not None and candidate.prefill.incarnation in incarnations


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
