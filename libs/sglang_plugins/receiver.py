"""Decode's end of one request, as SGLang's scheduler drives it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from libs.sglang_plugins.address import decode_address
from libs.sglang_plugins.backend import UcxBackend
from libs.sglang_plugins.ranks import address_of
from libs.sglang_plugins.states import FAILED, SUCCESS, WAITING_FOR_INPUT, poll_of
from libs.transfer.api import Fetch
from proto.base import ProtocolError
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import PeerAddress

if TYPE_CHECKING:
    BaseKVReceiver = object
else:
    from sglang.srt.disaggregation.base import BaseKVReceiver

from sglang.srt.disaggregation.common.conn import KVTransferError

__all__ = ["UcxReceiver"]


class UcxReceiver(BaseKVReceiver):
    """Connects when the request arrives and fetches its pages once the scheduler has some.

    The metadata row arrives after all pages, and only then is the state `Success`.
    """

    require_staging = False
    supports_host_destination = False
    abort_notified = False
    """Never True: SGLang would then hold the pages for an answer that nobody has to give."""

    def __init__(
        self, mgr: UcxBackend, bootstrap_addr: str, bootstrap_room: int | None = None
    ) -> None:
        self.kv_mgr = mgr
        self.bootstrap_room = bootstrap_room or 0
        self.bootstrap_infos: tuple[Any, ...] = ()
        self.conclude_state: int | None = None
        self._fetch: Fetch | None = None
        self._source: PeerAddress | None = None
        self._refusal = ""
        self._held = 0
        """Tokens of the prompt that this engine has already."""
        # Prefill waits no longer than that for our ask, so later pages would be of no use.
        self._deadline = time.monotonic() + mgr.want_timeout_s
        try:
            engine = decode_address(bootstrap_addr)
            self._source = address_of(engine, mgr.rank, mgr.ranks)
        except (ProtocolError, ValueError) as error:
            # An exception here would end the engine, not the request.
            self._refuse(ErrorCode.INVALID_REQUEST, str(error))

    def init(self, prefill_dp_rank: int) -> None:
        """Begin to connect; pages may be given now."""
        if self._source is not None:
            self.kv_mgr.plane.connect(self._source)

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: Sequence[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: Any = None,
        device_kv_indices: Any = None,
    ) -> None:
        """Fetch the room into these pages and this auxiliary row."""
        if self.conclude_state is not None or self._source is None:
            return
        pages = np.asarray(kv_indices, dtype=np.int64)
        size = self.kv_mgr.page_size
        self._held = decode_prefix_len or 0
        self._fetch = self.kv_mgr.plane.fetch(
            self._source,
            Room(self.bootstrap_room),
            pages,
            row=aux_index if aux_index is not None else -1,
            tokens=len(pages) * size,
            skip_pages=self._held // size,
        )

    def poll(self) -> int:
        """Return where the transfer stands, as a `KVPoll` value."""
        if self.conclude_state is not None:
            return self.conclude_state
        if self._fetch is None:
            if time.monotonic() > self._deadline:
                self._refuse(ErrorCode.DEADLINE, "the decode engine had no free pages in time")
                return FAILED
            return WAITING_FOR_INPUT
        state = poll_of(self._fetch.state)
        if state in (SUCCESS, FAILED):
            self._conclude(state)
        return state

    def failure_exception(self) -> None:
        """Raise why the transfer failed.

        Raises:
            KVTransferError: always.
        """
        self._give_up("failed")
        failure = self._fetch.failure if self._fetch else None
        raise KVTransferError(
            self.bootstrap_room, failure.detail if failure else self._refusal or "aborted"
        )

    def abort(self) -> None:
        """Stop; when this returns no page is written any more."""
        self._give_up("aborted by the decode engine")

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """Do nothing: `abort` has told the peer, and its answer is not needed."""

    def is_abort_release_safe(self) -> bool:
        """Return True: only this process writes its pages, and it has stopped."""
        return True

    def clear(self) -> None:
        """Forget the room."""
        self._give_up("dropped by the decode engine")

    def _give_up(self, detail: str) -> None:
        if self.conclude_state is not None:
            return
        if self._fetch is None:
            self._refuse(ErrorCode.CANCELLED, detail)
            return
        self._fetch.abort(detail)
        self._conclude(FAILED)

    def _refuse(self, code: ErrorCode, detail: str) -> None:
        """End a request that never had a transfer."""
        self._refusal = detail
        self.conclude_state = FAILED
        self.kv_mgr.refuse(self.bootstrap_room, code, detail)

    def _conclude(self, state: int) -> None:
        self.conclude_state = state
        if self._fetch is not None:
            self.kv_mgr.conclude(self._fetch, self._held)
