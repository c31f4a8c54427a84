"""When the tokens of an attempt stand for a beat."""

from __future__ import annotations

import pytest

from libs.worker.attempt import Attempt
from proto.errors import ErrorCode
from proto.gateway import AttemptFailed, StillHere, TokenChunk
from proto.ids import Incarnation, InstanceId, Nonce, RequestId
from proto.prefill import ReplyTo
from proto.workers import Role

CHUNK = TokenChunk(attempt=0, offset=0, ids=b"\1\0\0\0", sent_ms=10_000)


def attempt(*said: object) -> Attempt:
    reply = ReplyTo(
        gateway=InstanceId("gateway-1"), incarnation=Incarnation("1" * 16), nonce=Nonce("0" * 32)
    )
    rid = RequestId("0" * 26)
    return Attempt(rid=rid, number=0, reply=reply, started_ms=0.0, started_s=0.0, log=[*said])


@pytest.mark.parametrize(
    ("now_ms", "news"), [(10_000, True), (10_249, True), (10_250, False), (9_999, False)]
)
def test_new_tokens_are_news_for_a_while(now_ms: int, news: bool):
    """For a quarter of a second, and not where the clock was set back since."""
    assert attempt(CHUNK).has_news(now_ms) is news


@pytest.mark.parametrize(
    "last",
    [
        None,
        StillHere(attempt=0, role=Role.PREFILL, final=True),
        AttemptFailed(attempt=0, role=Role.DECODE, code=ErrorCode.DECODE_LOST),
    ],
)
def test_nothing_else_is_news(last: object):
    """Before the first token, and after words that are no tokens, beats go on."""
    assert attempt(*([CHUNK, last] if last else [])).has_news(10_000) is False


def test_tokens_of_earlier_attempts_are_not_counted():
    """An attempt that continues an answer has produced what it begins behind."""
    reply = attempt().reply
    later = Attempt(RequestId("1" * 26), 1, reply, 0.0, 0.0, offset=7, produced=7)
    assert later.counted == 7
