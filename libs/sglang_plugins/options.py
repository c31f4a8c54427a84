"""The names of our extensions, and what the engine host tells them through the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proto.kv import Lane

__all__ = ["BACKEND", "OPTIONS_VARIABLE", "PLATFORM", "PLUGIN", "BackendOptions", "draft_of"]

PLATFORM: Final = "pdbus_cpu"
"""Entry point of the platform for CPUs without special kernels (`SGLANG_PLATFORM`)."""

PLUGIN: Final = "pdbus_ucx"
"""Entry point of the general plugin that adds the KV backend (`SGLANG_PLUGINS`)."""

BACKEND: Final = "ucx"
"""Value of SGLang's `disaggregation_transfer_backend`."""

OPTIONS_VARIABLE: Final = "PDBUS_ENGINE_BACKEND"
"""Environment variable that carries `BackendOptions` into SGLang's processes."""


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's data plane; times in seconds."""

    incarnation: str
    host_socket: str
    """Unix socket (packets) on which the engine host listens."""
    facts: dict[str, str] = {}
    """What both ends must share beyond what schedulers know, by field of the card."""
    fork: bool = False
    """Start SGLang's processes by fork; only safe where no accelerator is in use."""
    lanes: tuple[Lane, ...] = (Lane.SYSV, Lane.TCP)
    required: tuple[Lane, ...] = ()
    interface: str | None = None
    chunk_bytes: int = 4 << 20
    checksum_every: int = 8
    credits: int = 4
    connect_timeout_s: float = 5.0
    want_timeout_s: float = 60.0
    transfer_timeout_s: float = 20.0

    def to_environment(self) -> dict[str, str]:
        """Return the variables to set before SGLang starts."""
        return {OPTIONS_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BackendOptions:
        """Return the options that the engine host set.

        Raises:
            KeyError: this process does not belong to an engine host.
            msgspec.ValidationError: the value is not ours.
        """
        return msgspec.json.decode(environment[OPTIONS_VARIABLE], type=cls)


def draft_of(arguments: Any) -> str | None:
    """Return how answers are drafted ahead by SGLang's arguments, or None."""
    algorithm = getattr(arguments, "speculative_algorithm", None)
    if not algorithm:
        return None
    names = (
        "speculative_draft_model_path",
        "speculative_draft_model_revision",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    )
    return " ".join((str(algorithm), *(str(getattr(arguments, name, None)) for name in names)))
