"""The general plugin: adds the transfer backend `ucx` through SGLang's hook registry.

SGLang runs `register` in each of its processes. A plugin that fails is only logged there, so the
engine host asserts afterwards that the backend is known.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any

from sglang.srt.arg_groups.choices import add_disagg_transfer_backend_choices
from sglang.srt.disaggregation.base import BaseKVBootstrapServer
from sglang.srt.disaggregation.utils import KVClassType, TransferBackend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from libs.sglang_plugins.cpu.attention import decode_attention, extend_attention
from libs.sglang_plugins.cpu.groups import lone_groups
from libs.sglang_plugins.options import BACKEND, OPTIONS_VARIABLE, PLATFORM, BackendOptions

__all__ = ["IDLE_WAIT_S", "NullBootstrapServer", "register"]

IDLE_WAIT_S = 0.05
"""Longest sleep of a scheduler that only waits for transfers; news and messages wake it."""

_ROOM = "libs.sglang_plugins"
_CLASSES = {
    KVClassType.MANAGER: f"{_ROOM}.backend:UcxBackend",
    KVClassType.SENDER: f"{_ROOM}.sender:UcxSender",
    KVClassType.RECEIVER: f"{_ROOM}.receiver:UcxReceiver",
    KVClassType.BOOTSTRAP_SERVER: f"{_ROOM}.plugin:NullBootstrapServer",
}
_UTILS = "sglang.srt.disaggregation.utils"
_ATTENTION = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


class NullBootstrapServer(BaseKVBootstrapServer):
    """Serves nothing: addresses travel on the bus, topology when the planes connect.

    SGLang builds one in the main process of each prefill engine.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


def register() -> None:
    """Register all hooks; does nothing in a process that no engine host started."""
    if OPTIONS_VARIABLE not in os.environ:
        return
    options = BackendOptions.from_environment(os.environ)
    registry: Any = HookRegistry
    add_disagg_transfer_backend_choices([BACKEND])
    for target, (hook, kind) in _hooks(fork=options.fork).items():
        registry.register(target, hook, kind)


def _hooks(*, fork: bool) -> dict[str, tuple[Any, HookType]]:
    hooks: dict[str, tuple[Any, HookType]] = {
        f"{_UTILS}.TransferBackend": (_with_ucx(), HookType.REPLACE),
        f"{_UTILS}.get_kv_class": (_kv_class, HookType.AROUND),
        f"{_SCHEDULER}.on_idle": (_sleep_while_idle, HookType.AFTER),
        f"{_SCHEDULER}.send_kv_chunk": (_note_times, HookType.BEFORE),
        f"{_SCHEDULER}.get_next_disagg_prefill_batch_to_run": (_stop_dead_prompt, HookType.BEFORE),
    }
    if os.environ.get("SGLANG_PLATFORM") == PLATFORM:
        hooks[f"{_ATTENTION}._run_sdpa_forward_extend"] = (extend_attention, HookType.AROUND)
        hooks[f"{_ATTENTION}._run_sdpa_forward_decode"] = (decode_attention, HookType.AROUND)
        hooks["torch.distributed.new_group"] = (lone_groups(), HookType.AROUND)
    if fork:
        hooks["sglang.srt.entrypoints.engine._set_envs_and_config"] = (
            _start_by_fork,
            HookType.AFTER,
        )
    return hooks


def _with_ucx() -> type[Enum]:
    members = {member.name: member.value for member in TransferBackend}
    make: Any = Enum
    return make("TransferBackend", {**members, BACKEND.upper(): BACKEND}, module=_UTILS)


def _kv_class(original: Callable[..., Any], backend: Any, kind: KVClassType) -> Any:
    if backend.value != BACKEND or kind == KVClassType.KVARGS:
        return original(backend, kind)
    # Loaded on demand: an aggregated engine needs no UCX.
    return pkgutil.resolve_name(_CLASSES[kind])


def _sleep_while_idle(result: Any, scheduler: Any, *arguments: Any, **named: Any) -> Any:
    """Wait for news of a transfer where SGLang would spin: nothing runs, not all is done."""
    for name in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        queue = getattr(scheduler, name, None)
        if (
            queue is not None
            and hasattr(queue.kv_manager, "wait_for_news")
            # The others wait for the first one's word in each round.
            and queue.kv_manager.rank == 0
            and not scheduler.is_fully_idle()
        ):
            sleeper = scheduler.idle_sleeper
            sockets = () if sleeper is None else sleeper.poller.sockets
            queue.kv_manager.wait_for_news(sockets, IDLE_WAIT_S)
    return result


def _stop_dead_prompt(scheduler: Any, *arguments: Any, **named: Any) -> None:
    """End a prompt between two chunks when its transfer has failed.

    SGLang would compute the whole prompt first, for a decode engine that is gone.
    """
    req = scheduler.chunked_req
    # Ranks must end a prompt as one, and each sees only its own transfer here.
    if (
        scheduler.tp_size == 1
        and req is not None
        and getattr(req.disagg_kv_sender, "failed", False)
    ):
        scheduler._pending_chunked_abort_req = req  # noqa: SLF001 - as its own abort does


def _note_times(
    scheduler: Any, req: Any, last_chunk: bool = False, *rest: Any, **named: Any
) -> None:
    """Keep the scheduler's times of a prompt that is computed; SGLang tells them to nobody."""
    sender = req.disagg_kv_sender
    if not last_chunk or not hasattr(sender.kv_mgr, "note_times"):
        return
    times = req.time_stats
    sender.kv_mgr.note_times(
        sender.bootstrap_room,
        max(0.0, times.forward_entry_time - times.scheduler_recv_time),
        max(0.0, times.prefill_finished_time - times.forward_entry_time),
    )


def _start_by_fork(result: Any, *arguments: Any, **named: Any) -> Any:
    # A forked child shares the modules that its parent has imported: ten seconds less a start.
    multiprocessing.set_start_method("fork", force=True)
    return result
