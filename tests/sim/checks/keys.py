"""Idempotency keys: the same question is answered once, and tenants never meet (I8, I10)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from proto.errors import ErrorCode, spec_of
from proto.ids import RequestId, keyed_request_id
from proto.ledger import RequestRecord, RequestState
from tests.sim.client import Ask, Ending

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Keys"]

_GENERATIONS = 4
_FORGET_MS = 30_000
_SKEW_MS = 2_000
_COME_BACK_S = 9.0
"""A client that comes back this soon after it was cut off finds its request running."""


class Keys:
    """Follows all asks that share a key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate

    def final(self) -> None:
        """Check each key of each tenant, and each record that clients made."""
        groups: dict[tuple[str, str], list[Ask]] = defaultdict(list)
        for ask in self._world.asks:
            if ask.plan.key is not None:
                groups[ask.plan.tenant, ask.plan.key].append(ask)
        known: set[RequestId] = set()
        for asks in groups.values():
            known |= self._final_key(asks)
        self._check_forks(known)

    def _final_key(self, asks: list[Ask]) -> set[RequestId]:
        records = self._world.checks.records.now
        tenant, key = asks[0].tenant, asks[0].plan.key or ""
        rids = [keyed_request_id(tenant, key, generation) for generation in range(_GENERATIONS)]
        made = [records[rid] for rid in rids if rid in records]
        self._check_generations(made)
        if len({record.digest for record in made}) > 1:
            self._violate("I8", f"{rids[0]}: the key {key} stands for several bodies")
        for record in made:
            if record.tenant != tenant:
                self._violate("I10", f"{record.rid}: the key of {tenant} is used by another")
        for ask in asks:
            self._check_ask(ask, asks, made)
        self._check_same(asks)
        return set(rids)

    def _check_generations(self, made: list[RequestRecord]) -> None:
        """I8: a key starts anew only after its failure has been kept for a while."""
        for before, after in pairwise(made):
            wait_ms = after.created_ms - (before.ended_ms or 0)
            again = before.state is RequestState.FAILED and spec_of(
                before.error or ErrorCode.INTERNAL
            )
            if not again or not again.retryable or wait_ms < _FORGET_MS - _SKEW_MS:
                self._violate("I8", f"{after.rid}: begins {wait_ms} ms after {before.state}")

    def _check_ask(self, ask: Ask, asks: list[Ask], made: list[RequestRecord]) -> None:
        digests = {record.digest for record in made}
        mine = ask.digest in digests
        if ask.ending is Ending.ANSWERED and not mine:
            self._violate("I8", f"{ask.rid}: answered, and its key stands for another body")
        differs = any(x.digest != ask.digest and x.began_s <= ask.ended_s for x in asks)
        if ask.code is ErrorCode.IDEMPOTENCY_KEY_REUSED and not differs:
            self._violate("I8", f"{ask.rid}: told that its body differs, and it does not")
        if ask.code is ErrorCode.ALREADY_CANCELLED and all(
            record.state is not RequestState.CANCELLED for record in made
        ):
            self._violate("I8", f"{ask.rid}: told that it was cancelled, and it was not")
        if ask.code is ErrorCode.RESULT_EXPIRED:
            self._check_kept(ask, made)
        self._check_comes_back(ask)

    def _check_kept(self, ask: Ask, made: list[RequestRecord]) -> None:
        """I8: a result that was kept is given."""
        done = [record for record in made if record.state is RequestState.DONE]
        if not done:
            self._violate("I8", f"{ask.rid}: its result is kept no more, and it is not done")
        elif self._world.results.rows.get(done[0].rid):
            self._world.unless_parted("I8", f"{ask.rid}: its result is kept, and not given")
        else:
            self._world.unless_parted("I8", f"{ask.rid}: its result was not kept")

    def _check_comes_back(self, ask: Ask) -> None:
        """I8: where nothing goes wrong, whoever comes back in time gets the whole answer."""
        after = ask.plan.after
        if after is None or not self._world.scenario.calm or ask.ending is not Ending.FAILED:
            return
        first = self._world.asks[after.number]
        in_time = ask.began_s - first.ended_s < _COME_BACK_S
        cancelled = ask.code in {ErrorCode.ALREADY_CANCELLED, ErrorCode.CANCELLED}
        if ask.digest == first.digest and in_time and cancelled:
            self._violate("I8", f"{ask.rid}: came back in time, and was told {ask.code}")

    def _check_same(self, asks: list[Ask]) -> None:
        """I8: all who were answered got the same."""
        answered: dict[RequestId, set[str]] = defaultdict(set)
        for ask in asks:
            if ask.ending is Ending.ANSWERED:
                answered[ask.rid].add(f"{ask.got} {ask.usage} {ask.finish}")
                record = self._world.checks.records.now.get(ask.rid)
                if record is not None and record.usage != ask.usage:
                    self._violate("I8", f"{ask.rid}: {ask.usage}, and {record.usage} in the ledger")
        for rid, answers in answered.items():
            if len(answers) > 1:
                self._violate("I8", f"{rid}: several answers to one key")

    def _check_forks(self, known: set[RequestId]) -> None:
        """I8: what has a key runs under the id of the key, and under no other."""
        keyed = {ask.digest for ask in self._world.asks if ask.plan.key is not None}
        for rid, record in self._world.checks.records.now.items():
            if record.digest in keyed and rid not in known:
                self._violate("I8", f"{rid}: a key has forked")
