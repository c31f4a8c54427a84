"""Prefers the shortest prefill queue, then the emptiest decode."""

from __future__ import annotations

from proto.router import Place, ScoreTerm
from services.router.policies.api import Candidate, Score

__all__ = ["least_loaded"]


def least_loaded(ask: Place, candidate: Candidate) -> Score:
    """Score a candidate by the work in front of the request.

    The prefill term is in prompts of this request's size, the decode term is the share of slots in
    use; neither claims to be a time.
    """
    terms: list[ScoreTerm] = []
    if candidate.prefill is not None:
        load = candidate.prefill.load
        waiting = (load.waiting_tokens if load else 0) + candidate.prefill_pending_tokens
        terms.append(ScoreTerm(name="prefill_queue", value=waiting / max(1, ask.prompt_tokens)))
    load = candidate.decode.load
    slots = load.slots if load else 1
    busy = (slots - load.slots_free if load else 0) + candidate.decode_pending
    terms.append(ScoreTerm(name="decode_busy", value=busy / max(1, slots)))
    return Score(tuple(terms))
