"""Bugs in workers: admission, leases, aborts, drains."""

from __future__ import annotations

from typing import Any

from libs.worker import Worker
from libs.worker import worker as worker_room
from libs.worker.gateways import GatewayWatch
from libs.worker.speaker import Speaker
from libs.worker.tombstones import Tombstones
from proto.errors import ErrorCode
from proto.workers import WorkerState
from services.cleanup import CleanupService
from services.prefill import PrefillService
from tests.sim.mutants.plant import Mutant, mutant, nothing

__all__ = ["WORKING"]

_prefill_start = PrefillService._handle_start


def _start_twice(self: Any, start: Any) -> Any:
    self.worker.attempts.pop((start.rid, start.attempt), None)
    return _prefill_start(self, start)


_abort = Worker.abort


async def _free_at_once(self: Any, rid: Any, up_to: Any, reason: Any) -> Any:
    answer = await _abort(self, rid, up_to, reason)
    for lease in self.leases.of(rid, up_to):
        self.end_lease(rid, lease.attempt, "taken for free")
    return answer


_bury = Tombstones.bury


def _bury_all(self: Any, rid: Any, _attempt: Any, now_s: Any) -> None:
    _bury(self, rid, 99, now_s)


async def _settled_at_once(_self: Any, _timeout_s: float) -> bool:
    return True


_become = Worker._become


def _become_quietly(self: Any, state: Any, reason: str) -> None:
    if state is not WorkerState.DRAINING:
        _become(self, state, reason)


_fail = Speaker.fail


def _say_nothing_of_aborts(self: Any, attempt: Any, code: Any, detail: str) -> None:
    if code is not ErrorCode.CANCELLED or attempt.aborted is None:
        _fail(self, attempt, code, detail)


_settled = Worker._settled


async def _free_before_the_end(self: Any, timeout_s: float) -> bool:
    settled = await _settled(self, timeout_s)
    if self.state is WorkerState.DRAINING and timeout_s == worker_room._STOP_S:
        for lease in self.leases:
            self.end_lease(lease.rid, lease.attempt, "taken for free")
    return settled


WORKING: dict[str, Mutant] = {
    "start is not idempotent": mutant(
        "I6 room internal", 73, (PrefillService, "_handle_start", _start_twice)
    ),
    "freed without local proof": mutant("I5", 0, (Worker, "abort", _free_at_once)),
    "reservations never expire": mutant(
        "I3", 86, (Worker, "_expire", lambda *_: None), (CleanupService, "_consider", nothing)
    ),
    "leases outlive their work": mutant("I3", 0, (Worker, "end_lease", lambda *_: None)),
    "aborts do not reach the engine": mutant("I7", 0, (Worker, "_abort_job", nothing)),
    "an abort hits later attempts": mutant("I7", 90, (Tombstones, "bury", _bury_all)),
    "a drain forgets running work": mutant("I2", 56, (Worker, "_settled", _settled_at_once)),
    "a drain is not announced": mutant("drain I2", 1, (Worker, "_become", _become_quietly)),
    "a drain frees before the engine has": mutant(
        "I5", 1, (Worker, "_settled", _free_before_the_end)
    ),
    "whoever is aborted says nothing": mutant("I2", 122, (Speaker, "fail", _say_nothing_of_aborts)),
    "orphans run on": mutant("I7", 29, (GatewayWatch, "orphaned", lambda *_: False)),
}
