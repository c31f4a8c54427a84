"""What a gateway makes of the fleet that it hears."""

from __future__ import annotations

from typing import Any, cast

from libs.fleet import Fleet
from proto.ids import Incarnation, InstanceId
from proto.workers import Heartbeat, Role, WorkerState
from services.gateway.fleet import GatewayFleet


class Hands:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 10.0

    def monotonic(self) -> float:
        return self.now


class Wire:
    """A bus that is there."""

    connected = True


def fleet_of(hands: Hands) -> GatewayFleet:
    return GatewayFleet(
        bus=cast("Any", Wire()),
        clock=cast("Any", hands),
        tasks=cast("Any", None),
        calls=cast("Any", None),
        fleet=Fleet(),
        instance=InstanceId("gateway-000000"),
        incarnation=Incarnation("9" * 16),
    )


def beat(role: Role, sequence: int, state: WorkerState = WorkerState.READY) -> Heartbeat:
    return Heartbeat(
        role=role,
        instance=InstanceId(f"{role}-00000000"),
        incarnation=Incarnation("1" * 16 if role is Role.ROUTER else "2" * 16),
        version="0.0.0",
        sequence=sequence,
        sent_ms=sequence,
        state=state,
    )


def test_each_word_counts_at_once():
    """What a heartbeat says is seen by the next look, however short a time ago the last one was."""
    hands = Hands()
    fleet = fleet_of(hands)
    assert fleet.readiness().reason == "no router is ready"
    fleet.fleet.hear(beat(Role.ROUTER, 1), hands.now)
    assert fleet.readiness().reason == "no usable workers"
    fleet.fleet.hear(beat(Role.AGGREGATED, 1), hands.now)
    assert fleet.readiness().reason == "no request has gone the whole way yet"
    fleet.fleet.hear(beat(Role.AGGREGATED, 2, WorkerState.DRAINING), hands.now)
    assert fleet.readiness().reason.startswith("no usable workers")


def test_silence_counts_soon():
    """A process that has fallen silent is missed within a twentieth of a second of its time."""
    hands = Hands()
    fleet = fleet_of(hands)
    fleet.fleet.hear(beat(Role.ROUTER, 1), hands.now)
    hands.now += 2.49
    assert fleet.readiness().reason == "no usable workers"
    hands.now += 0.06
    assert fleet.readiness().reason == "no router is ready"
