"""The KV backend that SGLang builds once per scheduler process: it owns the data plane."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import zmq

from libs.sglang_plugins.address import encode_address
from libs.sglang_plugins.link import HostLink
from libs.sglang_plugins.options import BackendOptions, draft_of
from libs.sglang_plugins.pools import check_supported, host_pool, pool_of
from libs.sglang_plugins.ranks import incarnation_of
from libs.transfer.api import DataPlane, Fetch, KvLayout, Offer, PlaneSettings, Wake
from libs.transfer.plane import UcxPlane
from proto.backend import PlaneOpened, RoomClosed
from proto.errors import ErrorCode
from proto.host import PeerProbed, ProbePeer
from proto.ids import Room
from proto.pairs import PairProbe

if TYPE_CHECKING:
    BaseKVManager = object
else:
    from sglang.srt.disaggregation.base import BaseKVManager

__all__ = ["KnownPeers", "UcxBackend"]

_AHEAD = 2
"""Prompts that may be computed though nobody has asked for them yet."""
_HAND_S = 0.001
_SENT_WAKE_S = 0.005
_SWITCH_S = 0.0002
"""How long the plane's thread and the scheduler's keep the GIL from one another: each waits for
the other in the middle of a hand-over, where Python's 5 ms would be most of a small transfer."""


class KnownPeers:
    """SGLang's table of prefill engines: every address is known, because it says all by itself.

    SGLang would otherwise ask for a peer's topology over HTTP, once a second. Ours is compared
    when the planes connect.
    """

    def get(self, address: str, default: object = None) -> SimpleNamespace:
        """Return a peer without data parallelism, whatever the address."""
        return SimpleNamespace(dp_size=1, follow_bootstrap_room=True)


class UcxBackend(BaseKVManager):
    """What SGLang calls the KV manager.

    Raises:
        UnsupportedMemoryError: the engine's KV memory cannot be moved.
        PdbusError: no lane can be opened.
    """

    enable_all_cp_ranks_for_transfer = False
    enable_deferred_decode_kv_release = False
    enable_staging = False
    is_dummy_cp_rank = False
    supports_host_destination = False
    attn_cp_rank = 0
    attn_cp_size = 1

    def __init__(
        self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool = False
    ) -> None:
        options = BackendOptions.from_environment(os.environ)
        check_supported(
            args,
            device=str(server_args.device),
            pp_size=server_args.pp_size,
        )
        sys.setswitchinterval(_SWITCH_S)
        self.kv_args = args
        self.rank = int(args.engine_rank)
        self.ranks = int(server_args.tp_size)
        self.page_size = int(args.page_size)
        self.want_timeout_s = options.want_timeout_s
        self.rest_s = _SENT_WAKE_S
        """How long prefill leaves what it has sent before it tells its end: decode, whose first
        token somebody waits for, may need the core."""
        self._untold = False
        self.transfer_infos: dict[int, Any] = {}
        self.prefill_info_table = KnownPeers()
        self._times: dict[int, tuple[float, float]] = {}
        self._ahead: set[int] = set()
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller: Any = None
        self._telling = threading.Lock()
        self._link = HostLink(options.host_socket)
        self.plane = _open_plane(args, server_args, options, self._wake, self._tell_figures)
        self._link.send(
            PlaneOpened(
                address=self.plane.address,
                kv_dtype=_dtype_name(args.kv_cache_dtype_str),
                kv_layout="nhd",
                page_size=self.page_size,
                page_bytes=sum(args.kv_item_lens),
                row_bytes=sum(args.aux_item_lens),
                buffers=len(args.kv_item_lens),
            )
        )

        self._link.listen(self._probe)

    @property
    def address(self) -> str:
        """How a decode engine names this one in a request."""
        return encode_address(self.plane.address)

    def note_times(self, room: int, queue_s: float, forward_s: float) -> None:
        """Keep what the scheduler measured for a room until it is concluded."""
        self._times[room] = (queue_s, forward_s)

    def may_begin(self, room: int, asker: str) -> bool:
        """Return whether a prompt may be computed before decode has asked for its room.

        Decode reserved a slot before prefill heard of the request, so the ask is on its way. Only
        an engine that is linked has shown that it may have the pages. Ranks have links of their own
        and must begin as one, so they wait for the ask.
        """
        if self.ranks > 1 or len(self._ahead) >= _AHEAD or not self.plane.has_link(asker):
            return False
        self._ahead.add(room)
        return True

    def look_again(self) -> None:
        """Note that a room is over but was not told of, so that no sleep is longer than a rest."""
        self._untold = True

    def was_asked(self, room: int) -> None:
        """Note that decode has asked for a room."""
        self._ahead.discard(room)

    def conclude(self, handle: Fetch | Offer, held_tokens: int) -> None:
        """Tell the engine host how a room ended; call it once a room.

        Args:
            handle: our end of the room.
            held_tokens: tokens at the start of the prompt that decode held already.
        """
        self._ahead.discard(handle.room)
        failure = handle.failure
        queue_s, forward_s = self._times.pop(handle.room, (0.0, 0.0))
        self._link.send(
            RoomClosed(
                room=handle.room,
                report=handle.report,
                held_tokens=held_tokens,
                code=failure.code if failure else None,
                detail=failure.detail if failure else "",
                queue_s=queue_s,
                forward_s=forward_s,
            )
        )

    def refuse(self, room: int, code: ErrorCode, detail: str) -> None:
        """Tell the engine host why a request never had a transfer."""
        self._link.send(RoomClosed(room=Room(room), code=code, detail=detail))

    def wait_for_news(self, sockets: Sequence[tuple[Any, int]], timeout_s: float) -> None:
        """Sleep until a transfer has moved on or a message has come, at most `timeout_s`.

        Args:
            sockets: where the scheduler's messages arrive, with their events; always the same.
            timeout_s: the longest sleep.
        """
        if self._untold:
            self._untold, timeout_s = False, min(timeout_s, self.rest_s)
        # A room that opens wakes nobody; here it is seen soon.
        self._tell_figures()
        self._link.flush()
        if self._poller is None:
            self._poller = zmq.Poller()
            for socket, events in sockets:
                self._poller.register(socket, events)
            self._poller.register(self._news, zmq.POLLIN)
        self._poller.poll(timeout_s * 1000)
        # Nothing to read: a message woke the scheduler, or the time is over.
        with suppress(BlockingIOError):
            os.eventfd_read(self._news)

    def register_to_bootstrap(self) -> None:
        """Do nothing: the bus announces the address."""

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Return True: see `KnownPeers`."""
        return True

    def submit_prefill_recompute(self, receiver: Any, payload: Any) -> None:
        """Refuse: a request that lost its KV is placed anew by its gateway.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the ucx backend does not recompute retracted requests")

    def clear_deferred_abort_state(self, room: int) -> None:
        """Do nothing: an aborted room needs no answer from its peer."""

    def is_abort_release_safe(self, room: int, required_acks: int) -> bool:
        """Return True: only this process writes its pages, and it has stopped."""
        return True

    def _probe(self, ask: ProbePeer) -> None:
        """Go the way to a prefill engine; the answer is sent from the plane's thread."""

        def tell(found: PairProbe) -> None:
            self._link.send(PeerProbed(number=ask.number, found=found))

        self.plane.probe(ask.source, tell)

    def _wake(self) -> None:
        """Wake the scheduler; runs on the plane's thread."""
        os.eventfd_write(self._news, 1)

    def _tell_figures(self) -> None:
        # Two threads tell them: none may send what it read before the other's newer ones.
        with self._telling:
            stats = self.plane.stats
            self._link.figures(stats.open_rooms, stats.dropped_chunks, stats.unshared_links)


def _open_plane(
    args: Any, server: Any, options: BackendOptions, wake: Wake, rested: Wake
) -> DataPlane:
    facts = _facts(args, server, options)
    layout = KvLayout(
        page_bytes=tuple(args.kv_item_lens),
        row_bytes=tuple(args.aux_item_lens),
        page_tokens=int(args.page_size),
        compat=_digest(facts),
        facts=facts,
    )
    return UcxPlane(
        incarnation=incarnation_of(options.incarnation, int(args.engine_rank)),
        layout=layout,
        pages=pool_of(str(server.device), args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens),
        rows=host_pool(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens),
        settings=PlaneSettings(
            lanes=options.lanes,
            required=options.required,
            interface=options.interface,
            chunk_bytes=options.chunk_bytes,
            checksum_every=options.checksum_every,
            credits=options.credits,
            connect_timeout_s=options.connect_timeout_s,
            want_timeout_s=options.want_timeout_s,
            transfer_timeout_s=options.transfer_timeout_s,
            hand_s=_HAND_S,
            sent_wake_s=_SENT_WAKE_S,
        ),
        wake=wake,
        rested=rested,
    )


def _facts(args: Any, server: Any, options: BackendOptions) -> tuple[tuple[str, str], ...]:
    """Return all that two schedulers must share, by field, so that a difference has a name."""
    found = {
        **options.facts,
        "kv_dtype": _dtype_name(args.kv_cache_dtype_str),
        "page_size": str(args.page_size),
        "layers": ",".join(str(layer) for layer in args.kv_layer_ids),
        "tp": str(server.tp_size),
        "pp": str(server.pp_size),
        "attention": str(getattr(server, "attention_backend", "")),
        "draft": str(draft_of(server)),
    }
    return tuple(sorted(found.items()))


def _digest(facts: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _dtype_name(text: str) -> str:
    return str(text).removeprefix("torch.")
