"""Bugs in how a gateway follows and continues an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from services.decode import DecodeService
from services.gateway.attempts import drive, recovery
from services.gateway.attempts import start as start_room
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.drive import Attempts
from services.gateway.attempts.follow import Follower
from services.gateway.attempts.mailroom import Mailroom
from services.gateway.attempts.recovery import Budget, Recovery
from services.gateway.calls.reader import Reader
from tests.sim.mutants.plant import Mutant, mutant

__all__ = ["STREAMED"]


def _no_gap_check(self: Any, chunk: Any) -> list[Any]:
    if chunk.offset < self.next:
        return []
    self.next = chunk.offset + chunk.count
    self.complete = chunk.finish is not None
    return [chunk]


def _no_dedup(self: Any, chunk: Any) -> list[Any]:
    if chunk.offset <= self.next and not self.complete:
        self.next += chunk.count
        self.complete = chunk.finish is not None
        return [chunk]
    self._held[chunk.offset] = chunk
    return []


def _once(self: Any, *_args: Any, **_kwargs: Any) -> str | None:
    return "enough" if self.retries + self.migrations else None


def _all_again(self: Any) -> Any:
    self._assembler.next = 0
    return self._call


_decode_start = start_room._decode_start


def _from_zero(*args: Any) -> Any:
    return msgspec.structs.replace(_decode_start(*args), offset=0)


_rest = Attempts._rest


def _only_prompt(self: Any) -> Any:
    return msgspec.structs.replace(_rest(self), prompt=self._call.prompt)


def _one_nonce(_entropy: Any) -> str:
    task: Any = asyncio.current_task()
    return f"{task.number:032x}"


_take = Follower._take


def _any_attempt(self: Any, message: Any, now: float) -> Any:
    return _take(self, msgspec.structs.replace(message, attempt=self._placement.attempt), now)


def _endless(self: Any, code: Any, **_kwargs: Any) -> str | None:
    return None if code in recovery._LOST else "no"


_deltas = Reader.deltas


def _from_now_on(self: Any, offer: Any = None) -> Any:
    self._position = self._position or len(self._subject.log.parts)
    return _deltas(self, offer)


_handle_replay = DecodeService._handle_replay


def _without_the_end(self: Any, ask: Any) -> Any:
    attempt = self.worker.attempts.get((ask.rid, ask.attempt))
    if attempt is None:
        return _handle_replay(self, ask)
    whole, attempt.log = attempt.log, [m for m in attempt.log if not getattr(m, "finish", None)]
    try:
        return _handle_replay(self, ask)
    finally:
        attempt.log = whole


STREAMED: dict[str, Mutant] = {
    "no gap check": mutant("I1", 8, (Assembler, "accept", _no_gap_check)),
    "no offset dedup": mutant("I1", 8, (Assembler, "accept", _no_dedup)),
    "no attempt fence at the gateway": mutant(
        "I1 I4",
        14,
        (drive, "new_nonce", _one_nonce),
        (Follower, "_take", _any_attempt),
        (Mailroom, "shut", lambda *_: None),
    ),
    "blind re-prefill after tokens": mutant(
        "I1", 1, (Recovery, "refusal", _once), (Attempts, "_rest", _all_again)
    ),
    "migration with a wrong offset": mutant("I1", 14, (start_room, "_decode_start", _from_zero)),
    "migration without the emitted tokens": mutant("I1", 14, (Attempts, "_rest", _only_prompt)),
    "migration against the policy": mutant(
        "policy", 1, (recovery, "why_not_continue", lambda *_, **__: None)
    ),
    "no budget of further attempts": mutant("I12", 44, (Budget, "take", lambda *_: True)),
    "further attempts without end": mutant(
        "I12", 44, (Recovery, "refusal", _endless), (Budget, "take", lambda *_: True)
    ),
    "a late reader misses the beginning": mutant("I1", 0, (Reader, "deltas", _from_now_on)),
    "a lost end is not replayed": mutant(
        "I2", 62, (DecodeService, "_handle_replay", _without_the_end)
    ),
}
