"""Settings that all services share."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["LogLevel", "ServiceSettings"]

LogLevel = Literal["debug", "info", "warning", "error"]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Identity, bus, health port and life of one process."""

    nats: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    """NATS servers to connect to; any one is enough."""
    nats_seed_file: str | None = None
    """File with the nkey seed of this service; without it the connection is anonymous."""
    nats_ca_file: str | None = None
    """CA certificates for a TLS connection."""
    instance: Annotated[str, Meta(pattern="^[a-z][a-z0-9-]{0,63}$")] | None = None
    """Name of this process, `<service>-<8 characters>`; a new one at each start if absent."""
    health_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port on 127.0.0.1 for /livez, /readyz and /metrics; 0 takes a free one."""
    log_level: LogLevel = "info"
    """Least level that is logged."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """Most seconds to wait for the bus at the start."""
    drain_grace_s: Annotated[float, Meta(ge=0)] = 20.0
    """Seconds that running requests may take after the first signal to stop."""
    state_dir: str = ".pdbus"
    """Folder for files of this deployment: models, sockets, records."""
    port_file: str | None = None
    """File that gets the number of the health port, for whoever let us choose it."""
    die_with_parent: bool = False
    """End at once when the parent process ends (Linux)."""
