"""Prefill's end of one request, as SGLang's scheduler drives it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from libs.sglang_plugins.backend import UcxBackend
from libs.sglang_plugins.states import (
    BOOTSTRAPPING,
    FAILED,
    SUCCESS,
    TRANSFERRING,
    WAITING_FOR_INPUT,
    poll_of,
)
from proto.ids import Room

if TYPE_CHECKING:
    BaseKVSender = object
else:
    from sglang.srt.disaggregation.base import BaseKVSender

from sglang.srt.disaggregation.base.conn import KVTransferMetric
from sglang.srt.disaggregation.common.conn import KVTransferError

__all__ = ["UcxSender"]


class UcxSender(BaseKVSender):
    """Offers a room when the request arrives and pushes its pages chunk by chunk."""

    def __init__(
        self,
        mgr: UcxBackend,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        self.kv_mgr = mgr
        self.bootstrap_room = bootstrap_room
        self.conclude_state: int | None = None
        self._early_send_wait_event: Any = None
        self._asker = bootstrap_addr.rpartition(":")[0]
        self._offer = mgr.plane.offer(Room(bootstrap_room), self._asker)
        self._ahead = False
        """Whether computing began before the room was asked for."""
        self._skip = 0
        self._pages = 0
        self._sent = 0
        self._row: int | None = None
        self._first_send: float | None = None
        self._last_send = 0.0
        self._seconds: float | None = None

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """Learn how many pages will be sent, and which auxiliary row goes with the last."""
        self._pages = num_kv_indices
        self._row = aux_index

    def pop_decode_prefix_len(self) -> int:
        """Return the tokens that decode already holds."""
        self._skip = self._offer.skip_pages
        return self._skip * self.kv_mgr.page_size

    def should_send_kv_chunk(self, num_pages: int, last_chunk: bool) -> bool:
        """Return whether a chunk is worth a call; the last one always is, it carries the row."""
        return num_pages > 0 or last_chunk

    def send(
        self,
        kv_indices: Any,
        state_indices: Sequence[Any] | None = None,
        num_kv_tokens: int | None = None,
        indices_event: Any = None,
    ) -> None:
        """Push pages that are computed."""
        if self.conclude_state is not None:
            return
        for event in (self._early_send_wait_event, indices_event):
            if event is not None:
                event.synchronize()
        self._early_send_wait_event = None
        self._last_send = time.perf_counter()
        if self._first_send is None:
            self._first_send = self._last_send
        pages = np.asarray(kv_indices, dtype=np.int64)
        first = self._skip + self._sent
        self._sent += len(pages)
        last = self._sent >= self._pages
        self._offer.push(pages, first_page=first, last=last, row=self._row if last else None)

    def poll(self) -> int:
        """Return where the transfer stands, as a `KVPoll` value."""
        if self.conclude_state is None:
            state = poll_of(self._offer.state)
            if state == BOOTSTRAPPING and self._may_begin():
                return WAITING_FOR_INPUT
            if state not in (SUCCESS, FAILED):
                self.kv_mgr.was_asked(self.bootstrap_room)
                return state
            if state == SUCCESS and time.perf_counter() - self._last_send < self.kv_mgr.rest_s:
                self.kv_mgr.look_again()
                return TRANSFERRING
            self._conclude(state)
        return self.conclude_state if self.conclude_state is not None else FAILED

    @property
    def failed(self) -> bool:
        """Whether the transfer can no longer succeed."""
        return self.poll() == FAILED

    def get_transfer_metric(self) -> Any:
        """Return bytes and seconds for SGLang's own metrics."""
        report = self._offer.report
        return KVTransferMetric(
            transfer_latency_s=self._seconds,
            transfer_total_bytes=report.moved_bytes if report else None,
        )

    def failure_exception(self) -> None:
        """Raise why the transfer failed.

        Raises:
            KVTransferError: always.
        """
        self._give_up("failed")
        failure = self._offer.failure
        raise KVTransferError(self.bootstrap_room, failure.detail if failure else "aborted")

    def abort(self) -> None:
        """Stop; when this returns no page is read any more."""
        self._give_up("aborted by the prefill engine")

    def clear(self) -> None:
        """Forget the room."""
        self._give_up("dropped by the prefill engine")

    def _may_begin(self) -> bool:
        """Whether to compute while the ask is still on its way.

        Pages that decode turns out to hold already are left out when they are sent.
        """
        self._ahead = self._ahead or self.kv_mgr.may_begin(self.bootstrap_room, self._asker)
        return self._ahead

    def _give_up(self, detail: str) -> None:
        if self.conclude_state is None:
            self._offer.abort(detail)
            self._conclude(FAILED)

    def _conclude(self, state: int) -> None:
        self.conclude_state = state
        if self._first_send is not None:
            self._seconds = time.perf_counter() - self._first_send
        # Where computing began before the ask, only the offer has heard of it.
        held = self._offer.skip_pages * self.kv_mgr.page_size
        self.kv_mgr.conclude(self._offer, held)
