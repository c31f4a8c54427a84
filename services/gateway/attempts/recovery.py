"""Whether a lost attempt may be followed by another. Pure.

Before the first token a second attempt repeats work and nothing else. After it, the answer goes on
from what the client has: prompt and emitted tokens are prefilled again, and decode continues at the
next offset. That is refused wherever it could not be right.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from proto.errors import ErrorCode, spec_of
from proto.sampling import SamplingParams
from services.gateway.api import Recover

__all__ = ["Budget", "Recovery", "why_not_continue"]

_MOST_RETRIES = 1
_MOST_MIGRATIONS = 2
_NEEDS_S = 1.0
"""Time that must be left for another attempt to make sense."""
_WINDOW_S = 60.0
_SHARE = 0.1
_ALWAYS = 3
_LOST = frozenset(
    {
        ErrorCode.DECODE_LOST,
        ErrorCode.PREFILL_LOST,
        ErrorCode.KV_TRANSFER_FAILED,
        ErrorCode.TRANSFER_CORRUPT,
        ErrorCode.STREAM_GAP,
        ErrorCode.DRAINING,
    }
)


class Budget:
    """How many second attempts a gateway may make: a tenth of what it accepted in a minute.

    A few are always allowed, so that a quiet system recovers too.
    """

    def __init__(self) -> None:
        self._accepted: deque[float] = deque()
        self._spent: deque[float] = deque()

    def accept(self, now_s: float) -> None:
        """Count a request that was accepted."""
        self._accepted.append(now_s)
        _forget(self._accepted, now_s)

    def take(self, now_s: float) -> bool:
        """Spend one second attempt, if the budget has one."""
        _forget(self._accepted, now_s)
        _forget(self._spent, now_s)
        if len(self._spent) >= max(_ALWAYS, int(_SHARE * len(self._accepted))):
            return False
        self._spent.append(now_s)
        return True


def _forget(times: deque[float], now_s: float) -> None:
    while times and now_s - times[0] > _WINDOW_S:
        times.popleft()


@dataclass(slots=True)
class Recovery:
    """What one request has used up of its second chances."""

    policy: Recover
    sampling: SamplingParams
    retries: int = 0
    migrations: int = 0
    earlier: int = 0
    """Further attempts of owners that are gone; what each was for is not known."""
    parsed: bool = False
    """Whether decode takes the answer apart into calls or reasoning."""

    def refusal(
        self, code: ErrorCode, *, emitted: int, text_is_whole: bool, left_s: float
    ) -> str | None:
        """Return why there must be no further attempt, or None.

        Args:
            code: how the last attempt was lost.
            emitted: tokens that the client has.
            text_is_whole: whether their text is all that these tokens say; false while a character
                or a possible stop string is held back.
            left_s: seconds until the deadline.
        """
        if left_s < _NEEDS_S:
            return "the deadline is too near"
        if emitted == 0:
            if not spec_of(code).attempt_retryable:
                return f"{code} is never tried again"
            spent = self.retries + self.earlier
            return "it was tried again already" if spent >= _MOST_RETRIES else None
        if code not in _LOST:
            return f"{code} after the first token"
        if self.migrations + self.earlier >= _MOST_MIGRATIONS:
            return f"it has moved {self.migrations + self.earlier} times already"
        if self.parsed:
            return "its parser is in the middle of the answer"
        return why_not_continue(
            self.policy, self.sampling, emitted=emitted, text_is_whole=text_is_whole
        )

    def count(self, *, emitted: int) -> None:
        """Note that another attempt begins."""
        if emitted:
            self.migrations += 1
        else:
            self.retries += 1


def why_not_continue(
    policy: Recover, sampling: SamplingParams, *, emitted: int, text_is_whole: bool
) -> str | None:
    """Return why an answer cannot be continued by another decode, or None."""
    if policy is Recover.NEVER:
        return "the policy is never"
    if policy is Recover.GREEDY and sampling.temperature > 0:
        return "the policy is greedy and the request is not"
    if sampling.frequency_penalty or sampling.presence_penalty:
        return "penalties count only what one engine has emitted"
    if sampling.repetition_penalty != 1.0:
        return "penalties count only what one engine has emitted"
    if sampling.guide is not None:
        return "its grammar is in the middle of the answer"
    if sampling.logprobs is not None:
        return "log-probabilities of two engines do not belong in one answer"
    if not text_is_whole:
        return "a part of the text is held back"
    return "nothing is left to generate" if emitted >= sampling.max_tokens else None
