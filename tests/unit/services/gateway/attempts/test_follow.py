"""One attempt as its gateway sees it: what goes on, and what counts as a sign of life."""

import asyncio
from typing import cast

import pytest

from libs.bus.api import Bus
from libs.clock.api import Clock
from proto.errors import ErrorCode
from proto.gateway import AttemptFailed, FinishReason, StillHere, TokenChunk
from proto.ids import Incarnation, InstanceId, Nonce, RequestId, Room, TenantHash
from proto.ledger import Mode, Placement
from proto.prefill import ReplyTo
from proto.sampling import SamplingParams
from proto.workers import Role, WorkerRef
from services.gateway.api import Call
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.follow import Follower
from services.gateway.prompt import PromptIds


class Hands:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def chunk(offset: int, *, attempt: int = 0, finish: FinishReason | None = None) -> TokenChunk:
    total = offset + 1 if finish else None
    return TokenChunk(
        attempt=attempt, offset=offset, ids=b"\1\0\0\0", text="a", finish=finish, total=total
    )


def follower_of(
    hands: Hands, emitted: list[int], plain: list[int], *, role: Role | None = None
) -> Follower:
    """Return a follower that notes the offsets of what it emits, on the long way and the short."""
    decode = worker(Role.DECODE)
    assembler = Assembler()
    assembler.begin(0)
    return Follower(
        bus=cast(Bus, None),
        clock=cast(Clock, hands),
        call=Call(
            rid=RequestId("a" * 26),
            tenant=TenantHash("t"),
            model="m",
            prompt=PromptIds(b""),
            sampling=SamplingParams(max_tokens=9),
            digest="d",
            deadline_ms=0,
        ),
        placement=Placement(
            attempt=0,
            mode=Mode.DISAGGREGATED if role else Mode.AGGREGATED,
            decode=decode,
            prefill=worker(role) if role else None,
            room=Room("1"),
            compat="c",
        ),
        assembler=assembler,
        reply=ReplyTo(
            gateway=InstanceId("gateway-000000"),
            incarnation=Incarnation("9" * 16),
            nonce=Nonce("n"),
        ),
        emit=lambda found: emitted.append(found.offset),
        plain=lambda found: plain.append(found.offset),
    )


def worker(role: Role) -> WorkerRef:
    return WorkerRef(
        role=role, instance=InstanceId(f"{role}-00000000"), incarnation=Incarnation("1" * 16)
    )


@pytest.mark.parametrize(("offset", "heard_s"), [(0, 1.0), (2, 5.0)])
def test_an_old_copy_is_no_sign_of_life(offset: int, heard_s: float) -> None:
    """A copy of an old chunk says nothing of whether its sender still lives; a new one does."""
    hands = Hands()
    follower = follower_of(hands, [], [])
    hands.now = 1.0
    assert follower._take(chunk(0), 1.0) + follower._take(chunk(1), 1.0) == [chunk(0), chunk(1)]
    hands.now = 5.0
    follower._take(chunk(offset), 5.0)
    assert follower._decode_heard_s == heard_s


def test_plain_tokens_take_the_short_way() -> None:
    """Behind the first token, each next one of the attempt; all else takes the long way."""
    hands, emitted, plain = Hands(), list[int](), list[int]()
    follower = follower_of(hands, emitted, plain)
    follower._running = True
    for found in (chunk(0), chunk(1), chunk(2), chunk(2), chunk(1), chunk(3, attempt=1)):
        follower.deliver(found, hands.now)
    assert (emitted, plain) == ([0], [1, 2])
    follower.deliver(chunk(4), hands.now)
    assert follower._arrived.is_set()
    assert (emitted, plain) == ([0], [1, 2])
    follower.deliver(chunk(3), hands.now)
    assert (emitted, plain) == ([0, 3, 4], [1, 2])
    hands.now = 3.0
    follower.deliver(chunk(5), hands.now)
    assert follower._decode_heard_s == hands.now
    follower.deliver(chunk(6, finish=FinishReason.STOP), hands.now)
    follower.deliver(chunk(7), hands.now)
    assert (emitted, plain) == ([0, 3, 4, 6], [1, 2, 5])


def test_a_failed_attempt_goes_on_with_the_long_way() -> None:
    """What comes behind the news of a failure is not taken for a sign that all is well."""
    hands, emitted, plain = Hands(), list[int](), list[int]()
    follower = follower_of(hands, emitted, plain)
    follower._running = True
    follower.deliver(chunk(0), hands.now)
    follower.deliver(
        AttemptFailed(attempt=0, role=Role.DECODE, code=ErrorCode.DECODE_LOST), hands.now
    )
    follower.deliver(chunk(1), hands.now)
    assert (emitted, plain) == ([0, 1], [])
    assert follower._arrived.is_set()


def test_a_token_proves_that_prefill_is_done() -> None:
    """No token takes the short way while it is not known that prefill has done its part."""
    hands, emitted, plain = Hands(), list[int](), list[int]()
    follower = follower_of(hands, emitted, plain, role=Role.PREFILL)
    follower._running = True
    follower._assembler.resume(3)
    follower.deliver(StillHere(attempt=0, role=Role.PREFILL), hands.now)
    follower.deliver(chunk(3), hands.now)
    assert follower._prefill_done
    follower.deliver(chunk(4), hands.now)
    assert (emitted, plain) == ([3], [4])


async def test_what_came_early_is_taken_in_order() -> None:
    """Chunks that arrive before the follower runs are not lost, and none overtakes them."""
    hands, emitted, plain = Hands(), list[int](), list[int]()
    follower = follower_of(hands, emitted, plain)
    for found in (chunk(0), chunk(1), chunk(2, finish=FinishReason.STOP)):
        follower.deliver(found, hands.now)
    assert (await asyncio.wait_for(follower.run(), 1.0)).offset == 2
    assert (emitted, plain) == ([0, 2], [1])
