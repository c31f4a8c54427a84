"""Clients: what they were given, and whether the ledger agrees (I1, I2)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from proto.errors import ErrorCode
from proto.ledger import TERMINAL, RequestRecord, RequestState
from tests.sim.client import Ask, Ending
from tests.sim.ports import text_of

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Answers"]

_SILENCE_BOUND_S = 10.0
_EARLY_S = 0.5
"""How far the clock of a gateway and rounding may shorten a deadline."""
_OWN = frozenset(
    {
        ErrorCode.IDEMPOTENCY_KEY_REUSED,
        ErrorCode.ALREADY_CANCELLED,
        ErrorCode.RESULT_EXPIRED,
    }
)
"""Answers to a key that say nothing of how its request ended; see `keys`."""
_CALM = frozenset({ErrorCode.DEADLINE, ErrorCode.SATURATED})
"""How a request may fail where nothing goes wrong: there was too much to do."""
_STRICT = frozenset({"gentle", "lossy"})
"""Worlds where things happen that no client should notice."""
_STILL_S = 5.0


class Answers:
    """Follows every client."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate

    def delivered(self, ask: Ask, before: int) -> None:
        """I1 and I4: each token follows from those before it; no attempt goes backwards."""
        for token in ask.got[before:]:
            wrong = ask.judge.take(token)
            if wrong is not None:
                self._world.once("I1", f"{ask.rid}: client {ask.plan.number}: {wrong}")
                return

    def watch(self) -> None:
        """I2: nobody waits for ever."""
        now, healed = self._world.loop.time(), self._world.scenario.heal_s
        for ask in self._world.asks:
            if ask.ending is not Ending.NONE or ask.domain is None:
                continue
            if not ask.domain.alive:
                ask.end(self._world, Ending.CUT)
                continue
            known = self._world.checks.records.deadline_s(ask.rid)
            slow_s = ask.plan.pace_s * ask.plan.body.max_tokens
            if now > max(ask.deadline_s, known, healed) + slow_s + _SILENCE_BOUND_S:
                self._world.once("I2", f"{ask.rid}: client {ask.plan.number} has heard nothing")

    def final(self) -> None:
        """Compare each client with the ledger."""
        for ask in self._world.asks:
            self._final(ask)

    def _final(self, ask: Ask) -> None:
        if ask.code is ErrorCode.INTERNAL:
            self._violate("internal", f"{ask.rid}: {ask.detail}")
        if ask.ending is Ending.ANSWERED:
            self._answered(ask)
        self._check_time(ask)
        self._check_calm(ask)
        self._check_cancelled(ask)
        record = self._world.checks.records.now.get(ask.rid)
        if record is None:
            if ask.opened:
                self._violate("I2", f"{ask.rid}: opened without a record")
            return
        if record.digest != ask.digest or ask.code in _OWN:
            return
        slow = ask.plan.pace_s or ask.plan.stall_at_token is not None
        if slow and ask.code is ErrorCode.DRAINING:
            # A slow reader may not have taken all of an answer when its gateway ends.
            return
        self._check_usage(ask, record)
        wrong = self._disagree(ask, record)
        if wrong:
            self._violate("I2", f"{ask.rid}: client {ask.plan.number} {wrong}")
        elif ask.ending is Ending.FAILED:
            self._compare_codes(ask, record)

    def _answered(self, ask: Ask) -> None:
        count, finish = ask.judge.count, ask.judge.finish
        if count != len(ask.got) or finish is None or ask.finish is not finish:
            self._violate("I1", f"{ask.rid}: a complete answer that is not the right one")
        ids = struct.pack(f"<{len(ask.got)}I", *ask.got)
        if ask.text != text_of(ids):
            self._violate("I1", f"{ask.rid}: the text is not that of the tokens")
        if ask.usage is None or ask.usage.completion_tokens != count:
            self._violate("I1", f"{ask.rid}: {ask.usage} for {count} tokens")

    def _check_usage(self, ask: Ask, record: RequestRecord) -> None:
        usage = record.usage
        if record.state is not RequestState.DONE or usage is None:
            return
        if usage.completion_tokens < len(ask.got) and ask.code is not ErrorCode.STREAM_GAP:
            self._violate("I1", f"{ask.rid}: {len(ask.got)} tokens given, {usage} in the ledger")

    def _check_time(self, ask: Ask) -> None:
        """I2: nobody hears of a deadline before it has passed."""
        if ask.code is not ErrorCode.DEADLINE or self._world.faulted["clock"]:
            return
        known = self._world.checks.records.deadline_s(ask.rid)
        if ask.ended_s < min(ask.deadline_s, known or ask.deadline_s) - _EARLY_S:
            self._violate("I2", f"{ask.rid}: told of a deadline that had not passed")

    def _check_calm(self, ask: Ask) -> None:
        """Where nothing goes wrong, nothing fails; the same where the protocol must hide it.

        Exempt are answers to a key that say what became of its request, and real lack of room.
        """
        if ask.ending is not Ending.FAILED or ask.code in _OWN or not self._strict():
            return
        if ask.code not in _CALM and not self._was_left(ask):
            self._violate("I2", f"{ask.rid}: {ask.code} {ask.detail}, and nothing went wrong")
        still_s = ask.ended_s - ask.heard_s
        if ask.code is ErrorCode.DEADLINE and ask.got and still_s > _STILL_S:
            self._violate("I2", f"{ask.rid}: its stream stood still for {still_s:.1f} s")

    def _strict(self) -> bool:
        return self._world.scenario.calm or self._world.scenario.shape in _STRICT

    def _check_cancelled(self, ask: Ask) -> None:
        """I7: nobody hears of a cancel that nobody has ordered."""
        record = self._world.checks.records.now.get(ask.rid)
        if ask.code is not ErrorCode.CANCELLED or ask.rid in self._world.operator.cancelled:
            return
        left = any(
            other.left_s is not None or other.ending in {Ending.CUT, Ending.LEFT}
            for other in self._world.asks
            if other.rid == ask.rid
        )
        # Whoever has lost a request to another gateway is told that it goes on without him.
        if record is not None and not left and not self._only_followed(ask, record):
            self._violate("I7", f"{ask.rid}: told that it was cancelled, and nobody did")

    def _was_left(self, ask: Ask) -> bool:
        """Return whether all readers of a key had gone, so that it was cancelled."""
        record = self._world.checks.records.now.get(ask.rid)
        return record is not None and record.state is RequestState.CANCELLED

    def _disagree(self, ask: Ask, record: RequestRecord) -> str | None:
        """Return how the client's end and the record's differ, or None."""
        state, ending = record.state, ask.ending
        if state not in TERMINAL:
            return f"ends as {state}"
        if ending is Ending.ANSWERED and state is not RequestState.DONE:
            return f"answered, and the record says {state} {record.error}"
        if ending is Ending.REFUSED and ask.plan.key is None:
            return f"refused, and there is a record: {state}"
        done = ending is Ending.FAILED and state is RequestState.DONE
        if done and not self._only_followed(ask, record):
            return f"failed with {ask.code}, and the record says done"
        return None

    def _compare_codes(self, ask: Ask, record: RequestRecord) -> None:
        """Client and record name the same cause, unless something came between them.

        A gateway that could not reach the ledger leaves the ending to cleanup, with its code.
        """
        cancelled = {ErrorCode.CANCELLED, ErrorCode.DRAINING}
        same = record.error is ask.code
        if record.state is RequestState.CANCELLED:
            same = ask.code in cancelled
        if same or record.state is RequestState.DONE or self._only_followed(ask, record):
            return
        text = f"{ask.rid}: failed with {ask.code}, and the record says {record.error}"
        self._world.unless_parted("I2", text)

    def _only_followed(self, ask: Ask, record: RequestRecord) -> bool:
        """Return whether a client read at a gateway that did not own the request at its end.

        There its own connection, deadline or gateway may fail while the request itself does not.
        """
        followed = ask.gateway != record.sink.incarnation
        return ask.plan.key is not None and (followed or not ask.opened)
