"""What a worker service tells its engine host: one value, sent as JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from libs.engine.script.settings import ScriptOptions
from proto.ids import Incarnation
from proto.kv import Lane
from proto.workers import Role

__all__ = ["EngineKind", "HostOptions"]


class EngineKind(StrEnum):
    """Which engine the host runs."""

    SGLANG = "sglang"
    SCRIPTED = "scripted"


class HostOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One life of one engine."""

    kind: EngineKind
    role: Role
    incarnation: Incarnation
    served_model: str
    """Name under which clients ask for the model."""
    model_path: str = ""
    """Folder with the model and its tokenizer; the scripted engine can do without."""
    page_size: Annotated[int, Meta(ge=1)] = 16
    kv_tokens: Annotated[int, Meta(ge=1)] = 20000
    """Tokens that KV memory can hold."""
    slots: Annotated[int, Meta(ge=1)] = 32
    """Most requests that run at once."""
    context_tokens: Annotated[int, Meta(ge=1)] = 8192
    lanes: tuple[Lane, ...] = (Lane.SYSV, Lane.TCP)
    """Lanes on which peers are accepted, best first."""
    required: tuple[Lane, ...] = ()
    """Lanes on which KV may move at all; none means any."""
    interface: str | None = None
    """Network device for the TCP lane; None lets UCX choose."""
    chunk_bytes: Annotated[int, Meta(ge=4096)] = 4 << 20
    checksum_every: Annotated[int, Meta(ge=0)] = 8
    """One chunk of so many has a checksum; 0 for none."""
    credits: Annotated[int, Meta(ge=1)] = 4
    connect_timeout_s: float = 5.0
    want_timeout_s: float = 60.0
    transfer_timeout_s: float = 20.0
    start_timeout_s: float = 300.0
    """Most time from the start of the host until the engine is ready."""
    log_path: str = ""
    """File for the host's output; empty means the service's own."""
    script: ScriptOptions = ScriptOptions()
    tool_parser: str = ""
    """SGLang's name of the format in which the model writes tool calls; empty for none."""
    reasoning_parser: str = ""
    """SGLang's name of the format in which the model writes its reasoning; empty for none."""
    prefix_cache: bool = False
    """Whether a decode engine keeps the KV of ended requests and asks for the rest only."""
    engine_args: dict[str, Any] = {}
    """Further arguments for SGLang, by its own names."""

    def to_json(self) -> str:
        """Return the options as the host's argument."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> HostOptions:
        """Return the options in a host's argument.

        Raises:
            msgspec.ValidationError: a value is unknown, missing or out of bounds.
        """
        return msgspec.json.decode(text, type=cls)
