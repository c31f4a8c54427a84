"""What a cancel does to a request that has a turn."""

from typing import cast

from libs.bus.api import Bus, Store
from libs.clock import SystemClock
from libs.fleet import Fleet
from proto.ids import RequestId
from proto.ledger import RequestRecord
from services.router.candidates import Pending
from services.router.placing import Placing
from services.router.policies import POLICIES
from services.router.turns import Turns

A, B = RequestId("a" * 26), RequestId("b" * 26)


def test_a_cancel_between_two_slices_gives_the_turn_up() -> None:
    """Who left while nobody waited here for it takes no room of the queue any more."""
    clock = SystemClock()
    turns = Turns(clock)
    placing = Placing(
        bus=cast(Bus, None),
        store=cast("Store[RequestRecord]", None),
        clock=clock,
        fleet=Fleet(),
        pending=Pending(),
        turns=turns,
        policy=next(iter(POLICIES.values())),
    )
    turns.enter(A)
    turns.leave(A, for_good=False)
    turns.enter(B)
    assert turns.ahead(B) == 1
    placing.cancel(A, attempt=0)
    assert turns.ahead(B) == 0
