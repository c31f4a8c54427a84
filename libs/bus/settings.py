"""How to reach NATS."""

from __future__ import annotations

import ssl
from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["MAX_PAYLOAD", "BusSettings", "tls_context"]

MAX_PAYLOAD = 4 * 1024 * 1024
"""Bytes that a server must accept in one message: a prompt of a million tokens."""


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach NATS, and how long to wait for it. Times are seconds."""

    urls: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    name: str = "pdbus"
    """Connection name where no service identity gives one."""
    startup_deadline_s: Annotated[float, Meta(gt=0)] = 30.0
    """After this the start fails; later outages are waited out for ever."""
    connect_timeout_s: Annotated[float, Meta(gt=0)] = 1.0
    ping_interval_s: Annotated[float, Meta(gt=0)] = 2.0
    max_outstanding_pings: Annotated[int, Meta(ge=1)] = 2
    reconnect_wait_s: Annotated[float, Meta(gt=0)] = 0.1
    """First pause between two attempts; it doubles, with jitter, up to `reconnect_wait_max_s`."""
    reconnect_wait_max_s: Annotated[float, Meta(gt=0)] = 1.0
    barrier_timeout_s: Annotated[float, Meta(gt=0)] = 5.0
    min_max_payload: int = MAX_PAYLOAD
    """Bytes that the server must accept in one message, checked at start."""
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_handshake_first: bool = False
    event_buffer: Annotated[int, Meta(ge=1)] = 4096
    """Most events that wait for the event stream."""
    event_max_age_s: Annotated[float, Meta(ge=1)] = 24 * 3600.0
    event_max_bytes: int = 256 * 1024 * 1024


def tls_context(settings: BusSettings) -> ssl.SSLContext | None:
    """Return what TLS connections need, None where nothing is configured."""
    if settings.tls_ca_file is None and settings.tls_cert_file is None:
        return None
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    if settings.tls_cert_file is not None:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context
