"""What a tenant may use, under a virtual clock."""

from __future__ import annotations

import pytest

from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId, tenant_hash
from proto.keyfile import TenantRules
from proto.sampling import SamplingParams
from services.gateway.api import Call, Recover, Slo
from services.gateway.edge.visitor import ANYBODY, admitted
from services.gateway.prompt import PromptIds
from services.gateway.tenants.tenant import Tenant, duration
from tests.unit.services.gateway.tenants.hand_clock import HandClock

SECRET = "ab" * 32


def tenant(clock: HandClock | None = None, share: int = 1, name: str = "acme", **rules: object):
    return Tenant(
        name,
        TenantRules(**rules),
        secret=SECRET,
        clock=clock or HandClock(),
        share=share,
    )


def call(tokens: int = 10, **changes: object) -> Call:
    values: dict[str, object] = {
        "rid": RequestId("r" * 26),
        "tenant": tenant_hash("acme"),
        "model": "toy",
        "prompt": PromptIds(bytes(4 * tokens)),
        "sampling": SamplingParams(max_tokens=4),
        "digest": "d",
        "deadline_ms": 1,
    }
    return Call(**(values | changes))


def refusal(work: object, *args: object) -> PdbusError:
    with pytest.raises(PdbusError) as caught:
        work(*args)
    return caught.value


def told(who: Tenant) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in who.headers()}


def test_requests_a_minute():
    """The limit is a 429 that says when to come back, and it is right about that."""
    clock = HandClock()
    acme = tenant(clock, requests_per_minute=2)
    acme.enter()
    acme.enter()
    error = refusal(acme.enter)
    assert error.code is ErrorCode.RATE_LIMIT_EXCEEDED
    assert error.retry_after_s == pytest.approx(30.0)
    clock.now += 30.0
    acme.enter()


def test_requests_at_a_time():
    """A place is free again as soon as somebody has left; a refusal costs no request."""
    acme = tenant(requests_per_minute=3, streams=1)
    acme.enter()
    for _ in range(5):
        assert refusal(acme.enter).code is ErrorCode.RATE_LIMIT_EXCEEDED
    acme.leave()
    acme.enter()
    acme.leave()
    acme.enter()


def test_tokens_a_minute():
    """Prompt tokens are counted; a prompt that could never be admitted is not worth a retry."""
    clock = HandClock()
    acme = tenant(clock, tokens_per_minute=100)
    acme.charge(80)
    assert refusal(acme.charge, 60).retry_after_s == pytest.approx(24.0)
    assert refusal(acme.charge, 101).code is ErrorCode.REQUEST_TOO_LARGE
    clock.now += 24.0
    acme.charge(60)


def test_headers_are_openais():
    """Limit, rest and time to the reset, of requests and of tokens."""
    acme = tenant(requests_per_minute=60, tokens_per_minute=6000)
    acme.enter()
    acme.charge(1000)
    assert told(acme) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5000",
        "x-ratelimit-reset-tokens": "10s",
    }
    assert told(tenant()) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0171, "18ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (8.64, "8.64s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations(seconds: float, text: str):
    """Durations are written as OpenAI writes them, rounded up to a millisecond."""
    assert duration(seconds) == text


def test_processes_that_share_a_limit_enforce_a_part():
    """Each of four processes lets a quarter through, at least one at a time."""
    clock = HandClock()
    acme = tenant(clock, share=4, requests_per_minute=8, tokens_per_minute=400, streams=2)
    acme.enter()
    assert refusal(acme.enter).code is ErrorCode.RATE_LIMIT_EXCEEDED
    acme.leave()
    acme.enter()
    acme.leave()
    assert refusal(acme.enter).retry_after_s == pytest.approx(30.0)
    # A prompt that is larger than the part, and not larger than the limit, can be admitted.
    acme.charge(300)
    assert refusal(acme.charge, 1).retry_after_s == pytest.approx(120.6)


def test_new_rules_keep_what_was_used():
    """A change of the file is no way to a fresh limit."""
    acme = tenant(requests_per_minute=2)
    acme.enter()
    acme.enter()
    acme.apply(TenantRules(requests_per_minute=3))
    acme.enter()
    assert refusal(acme.enter).code is ErrorCode.RATE_LIMIT_EXCEEDED
    acme.apply(TenantRules())
    acme.enter()


def test_only_allowed_models():
    """A key that names models allows no other one."""
    acme = tenant(models=("toy",))
    acme.check_model("toy")
    error = refusal(acme.check_model, "big")
    assert (error.code, error.param, error.spec.http) == (
        ErrorCode.MODEL_NOT_ALLOWED,
        "model",
        403,
    )
    assert tenant().allows("big")


def test_calls_carry_what_the_tenant_decides():
    """Priority, aims, recovery and a salt of its own go into each call."""
    acme = tenant(priority=3, ttft_ms=200, recover="any")
    (made,) = admitted(acme, [call()])
    assert (made.priority, made.recover, made.slo) == (3, Recover.ANY, Slo(ttft_ms=200))
    assert len(made.cache_salt) == 32
    (salted,) = admitted(acme, [call(cache_salt="mine")])
    assert salted.cache_salt == f"{made.cache_salt}:mine"


def test_tenants_never_share_a_salt():
    """Neither by default nor by naming the salt of another one."""
    (one,) = admitted(tenant(), [call()])
    (other,) = admitted(tenant(name="other"), [call()])
    (thief,) = admitted(tenant(name="thief"), [call(cache_salt=one.cache_salt)])
    assert len({one.cache_salt, other.cache_salt, thief.cache_salt}) == 3


def test_prompts_count_once_however_many_choices_they_have():
    """Two prompts of three choices each are two prompts; several choices never move."""
    acme = tenant(tokens_per_minute=100, recover="any")
    calls = admitted(acme, [call(20)] * 3 + [call(30)] * 3, choices_a_prompt=3)
    assert told(acme)["x-ratelimit-remaining-tokens"] == "50"
    assert {made.recover for made in calls} == {Recover.NEVER}


def test_anybody_is_one_tenant_without_limits():
    """Without keys a call stays as it was asked."""
    asked = call(tenant=ANYBODY.tenant, cache_salt="mine", recover=Recover.GREEDY)
    assert admitted(ANYBODY, [asked]) == (asked,)
