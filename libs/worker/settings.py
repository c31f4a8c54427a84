"""Settings that prefill and decode share, and the engine that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from libs.clock.api import Clock
from libs.config import ServiceSettings
from libs.engine import Engine, EngineFactory
from libs.engine.options import EngineKind, HostOptions
from libs.engine.process import HostedEngine
from libs.engine.script.settings import ScriptOptions
from libs.lifecycle.tasks import Tasks
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane
from proto.pairs import LanePolicy
from proto.workers import Role

__all__ = ["WorkerSettings", "engine_factory"]


_LANES = "(sysv|posix|cma|tcp|rc|cuda_ipc)"
_POLICY = f"^(allow|(warn|require):{_LANES}(,{_LANES})*)$"


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """Which model the worker runs, on which engine, and how its KV moves."""

    engine: EngineKind = EngineKind.SGLANG
    """The engine: sglang, or the scripted one that needs no weights."""
    model: str
    """Name under which clients ask for the model."""
    model_path: str = ""
    """Folder with the model and its tokenizer."""
    page_size: Annotated[int, Meta(ge=1)] = 16
    """Tokens a page of KV memory holds; equal on all workers of a model."""
    kv_tokens: Annotated[int, Meta(ge=1)] = 20000
    """Tokens that KV memory can hold."""
    slots: Annotated[int, Meta(ge=1)] = 32
    """Most requests that run at once."""
    context_tokens: Annotated[int, Meta(ge=1)] = 8192
    """Prompt and answer of one request together, at most."""
    kv_transports: tuple[Lane, ...] = (Lane.SYSV, Lane.TCP)
    """Transports that are opened for KV, best first; no other is ever used."""
    kv_lanes: Annotated[str, Meta(pattern=_POLICY)] = "allow"
    """Which of them a pair of workers may be on: `require:<lanes>` refuses any other before KV
    moves, and one that is not known yet; `warn:<lanes>` only points it out; or `allow`."""
    kv_interface: str | None = None
    """Network device for KV over TCP."""
    kv_chunk_bytes: Annotated[int, Meta(ge=4096)] = 4 << 20
    """Most bytes of KV in one message."""
    kv_checksum_every: Annotated[int, Meta(ge=0)] = 8
    """One message of so many has a checksum that its receiver compares: 1 for all, 0 for none."""
    engine_args: dict[str, Any] = {}
    """Further arguments for SGLang, by its own names."""
    script: ScriptOptions = ScriptOptions()
    """Speed, answers and faults of the scripted engine."""

    @property
    def lane_policy(self) -> LanePolicy:
        """The meaning of `kv_lanes`."""
        return LanePolicy.parse(self.kv_lanes)


def engine_factory(  # noqa: PLR0913 - what all have, and what roles have of their own
    settings: WorkerSettings,
    *,
    role: Role,
    instance: InstanceId,
    clock: Clock,
    tasks: Tasks,
    parsers: tuple[str, str] = ("", ""),
    prefix_cache: bool = False,
) -> EngineFactory:
    """Return what makes the next incarnation of the worker's engine.

    Args:
        settings: what to run.
        role: of the worker.
        instance: names the log of the engine.
        clock: dates its figures.
        tasks: own its reader.
        parsers: names of the tool parser and the reasoning parser of the model's answers.
        prefix_cache: whether a decode engine keeps the KV of ended requests.
    """
    logs = Path(settings.state_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def make(incarnation: Incarnation) -> Engine:
        options = HostOptions(
            kind=settings.engine,
            role=role,
            incarnation=incarnation,
            served_model=settings.model,
            model_path=settings.model_path,
            page_size=settings.page_size,
            kv_tokens=settings.kv_tokens,
            slots=settings.slots,
            context_tokens=settings.context_tokens,
            lanes=settings.kv_transports,
            required=settings.lane_policy.required,
            interface=settings.kv_interface,
            chunk_bytes=settings.kv_chunk_bytes,
            checksum_every=settings.kv_checksum_every,
            log_path=str(logs / f"{instance}.engine.log"),
            tool_parser=parsers[0],
            reasoning_parser=parsers[1],
            script=settings.script,
            prefix_cache=prefix_cache,
            engine_args=settings.engine_args,
        )
        return HostedEngine(options, clock, tasks)

    return make
