"""What counts as a sign of life of decode."""

from typing import cast

import pytest

from libs.bus.api import Bus
from libs.clock.api import Clock
from proto.gateway import TokenChunk
from proto.ids import Incarnation, InstanceId, Nonce, RequestId, Room, TenantHash
from proto.ledger import Mode, Placement
from proto.prefill import ReplyTo
from proto.sampling import SamplingParams
from proto.workers import Role, WorkerRef
from services.gateway.api import Call
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.follow import Follower


class Hands:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def chunk(offset: int) -> TokenChunk:
    return TokenChunk(attempt=0, offset=offset, ids=b"\1\0\0\0", text="a")


@pytest.mark.parametrize(("offset", "heard_s"), [(0, 1.0), (2, 5.0)])
def test_an_old_copy_is_no_sign_of_life(offset: int, heard_s: float) -> None:
    """A copy of an old chunk says nothing of whether its sender still lives; a new one does."""
    hands = Hands()
    decode = WorkerRef(
        role=Role.DECODE,
        instance=InstanceId("decode-00000000"),
        incarnation=Incarnation("1" * 16),
    )
    assembler = Assembler()
    assembler.begin(0)
    follower = Follower(
        bus=cast(Bus, None),
        clock=cast(Clock, hands),
        call=Call(
            rid=RequestId("a" * 26),
            tenant=TenantHash("t"),
            model="m",
            input_ids=b"",
            prompt_tokens=0,
            sampling=SamplingParams(max_tokens=9),
            digest="d",
            deadline_ms=0,
        ),
        placement=Placement(
            attempt=0, mode=Mode.AGGREGATED, decode=decode, room=Room("1"), compat="c"
        ),
        assembler=assembler,
        reply=ReplyTo(
            gateway=InstanceId("gateway-000000"),
            incarnation=Incarnation("9" * 16),
            nonce=Nonce("n"),
        ),
        emit=lambda _chunk: None,
    )
    hands.now = 1.0
    assert follower._take(chunk(0)) + follower._take(chunk(1)) == [chunk(0), chunk(1)]
    hands.now = 5.0
    follower._take(chunk(offset))
    assert follower._decode_heard_s == heard_s
