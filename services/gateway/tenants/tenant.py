"""One tenant as one process sees it: its rules, and what is left of its limits."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.ids import tenant_hash
from proto.keyfile import TenantRules
from services.gateway.api import Recover, Slo
from services.gateway.tenants.bucket import MINUTE_S, Bucket

__all__ = ["Tenant", "duration"]

_RETRY_S = 1.0
"""When a place among the running requests may be free again is not known."""


class Tenant:
    """Implements `services.gateway.edge.visitor.Visitor`.

    Args:
        secret: of the key file, 64 hex digits.
        share: how many processes enforce an equal part of each limit.
    """

    def __init__(
        self, name: str, rules: TenantRules, *, secret: str, clock: Clock, share: int
    ) -> None:
        self.tenant = tenant_hash(name)
        self._clock = clock
        self._share = share
        self._running = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        # Tenants that could write each other's salt could tell from the time of an answer what
        # the other one has asked.
        mac = hmac.new(bytes.fromhex(secret), f"cache\n{name}".encode(), hashlib.sha256)
        self._salt = mac.hexdigest()[:32]
        self._rules = rules
        self.apply(rules)

    def apply(self, rules: TenantRules) -> None:
        """Change the rules; what was used stays used."""
        self._rules = rules
        self._models = None if rules.models is None else frozenset(rules.models)
        self._requests = self._resized(self._requests, rules.requests_per_minute)
        self._tokens = self._resized(self._tokens, rules.tokens_per_minute)

    # What a visitor is asked

    @property
    def priority(self) -> int:
        """Who is served first where requests wait: the higher one."""
        return self._rules.priority

    @property
    def recover(self) -> Recover | None:
        """Whether answers go on with another decode; None leaves that to the gateway."""
        return None if self._rules.recover is None else Recover(self._rules.recover)

    @property
    def slo(self) -> Slo | None:
        """What the tenant aims for."""
        rules = self._rules
        if rules.ttft_ms is None and rules.itl_ms is None:
            return None
        return Slo(ttft_ms=rules.ttft_ms, itl_ms=rules.itl_ms)

    def salt(self, given: str) -> str:
        """Return the tenant's own salt, with the client's behind it."""
        return f"{self._salt}:{given}" if given else self._salt

    def allows(self, model: str) -> bool:
        """Return whether the key allows a model."""
        return self._models is None or model in self._models

    def check_model(self, model: str) -> None:
        """Refuse a model that the key does not allow.

        Raises:
            PdbusError: model_not_allowed.
        """
        if not self.allows(model):
            text = f"This API key may not use the model '{model}'."
            raise PdbusError(ErrorCode.MODEL_NOT_ALLOWED, text, param="model")

    def charge(self, prompt_tokens: int) -> None:
        """Count the prompt of a request.

        Raises:
            PdbusError: rate_limit_exceeded, or request_too_large for what can never be admitted.
        """
        limit = self._rules.tokens_per_minute
        if self._tokens is None or limit is None:
            return
        if prompt_tokens > limit:
            text = f"The prompt has {prompt_tokens} tokens, and this API key may send {limit} a"
            raise PdbusError(ErrorCode.REQUEST_TOO_LARGE, f"{text} minute.", param="messages")
        wait_s = self._tokens.take(prompt_tokens, self._clock.monotonic())
        if wait_s:
            raise _limited(f"Limit of {limit} tokens a minute reached.", wait_s)

    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Return what an answer tells of the limits."""
        now_s = self._clock.monotonic()
        named = ((b"requests", self._requests), (b"tokens", self._tokens))
        return [header for name, bucket in named if bucket for header in _told(name, bucket, now_s)]

    # Coming and going

    def enter(self) -> None:
        """Take one of the running requests; each must `leave`.

        Raises:
            PdbusError: rate_limit_exceeded.
        """
        streams = self._rules.streams
        if streams is not None and self._running >= math.ceil(streams / self._share):
            raise _limited(f"Limit of {streams} requests at a time reached.", _RETRY_S)
        if self._requests is not None:
            wait_s = self._requests.take(1, self._clock.monotonic())
            if wait_s:
                limit = self._rules.requests_per_minute
                raise _limited(f"Limit of {limit} requests a minute reached.", wait_s)
        self._running += 1

    def leave(self) -> None:
        """Give back what `enter` took."""
        self._running -= 1

    def _resized(self, bucket: Bucket | None, limit: int | None) -> Bucket | None:
        if limit is None:
            return None
        mine, now_s = limit / self._share, self._clock.monotonic()
        if bucket is None:
            return Bucket(mine, now_s)
        bucket.resize(mine, now_s)
        return bucket


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `17ms`, `1.5s`, `6m0s`."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:  # noqa: PLR2004 - milliseconds of a second
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"


def _told(name: bytes, bucket: Bucket, now_s: float) -> Sequence[tuple[bytes, bytes]]:
    reset = duration(min(MINUTE_S * 60, bucket.full_in_s(now_s)))
    return (
        (b"x-ratelimit-limit-" + name, str(max(1, int(bucket.limit))).encode()),
        (b"x-ratelimit-remaining-" + name, str(bucket.left(now_s)).encode()),
        (b"x-ratelimit-reset-" + name, reset.encode()),
    )


def _limited(text: str, wait_s: float) -> PdbusError:
    return PdbusError(ErrorCode.RATE_LIMIT_EXCEEDED, text, retry_after_s=wait_s)
