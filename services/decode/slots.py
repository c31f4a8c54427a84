"""Reservations: a slot and KV room are held before any prefill begins."""

from __future__ import annotations

from libs.worker import Worker
from proto.decode import Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.host import EngineReady

__all__ = ["Slots"]

_WRITE_S = 60.0
"""Longest time from a reservation until its KV must have begun to move."""


class Slots:
    """The reservations of one decode worker. A reservation is a lease that has no attempt yet."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def reserve(self, ask: Reserve) -> Reserved:
        """Hold a slot; the same ask again gets the same answer.

        Raises:
            PdbusError: saturated, stale_attempt, and all that `Worker.admit` raises.
        """
        worker = self._worker
        ready = worker.admit(ask.rid, ask.attempt, ask.compat, ask.not_after_ms)
        if worker.leases.get(ask.rid, ask.attempt) is None:
            if (ask.rid, ask.attempt) in worker.attempts:
                # A copy that comes after the end: nobody would ever start, or free, what it holds.
                raise PdbusError(ErrorCode.STALE_ATTEMPT, "the attempt has run here already")
            self._check_room(ask, ready)
            for_s = max(0.0, (ask.not_after_ms - worker.clock.unix_ms()) / 1000)
            worker.upkeep.hold(ask.rid, ask.attempt, for_s)
        lease = worker.leases.open(ask.rid, ask.attempt, ask.tokens, worker.clock.monotonic())
        worker.leases.crowded = False
        worker.note()
        held_s = worker.clock.monotonic() - lease.born_s
        write_by = worker.clock.unix_ms() + int((_WRITE_S - held_s) * 1000)
        return Reserved(lease=lease.id, write_by_ms=min(write_by, ask.deadline_ms))

    def _check_room(self, ask: Reserve, ready: EngineReady) -> None:
        leases = self._worker.leases
        if ask.tokens > ready.max_request_tokens:
            detail = f"{ask.tokens} tokens do not fit {ready.max_request_tokens}"
            raise PdbusError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, detail)
        if len(leases) >= ready.slots:
            leases.crowded = True
            raise PdbusError(ErrorCode.SATURATED, f"all {ready.slots} slots are taken")
        if leases.tokens + ask.tokens > ready.kv_total_tokens:
            leases.crowded = True
            raise PdbusError(ErrorCode.SATURATED, "the KV room is promised to others")
