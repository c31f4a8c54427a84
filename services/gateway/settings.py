"""Settings of a gateway."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from libs.config import ServiceSettings
from services.gateway.api import Recover, UnknownFields

__all__ = ["Settings"]


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """Where the gateway listens, which model it speaks for, and what it puts up with."""

    host: str = "127.0.0.1"
    """Address that the REST API listens on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port of the REST API; 0 takes a free one."""
    model: str
    """Name under which clients ask for the model."""
    model_path: str
    """Folder with the model's tokenizer, chat template and config."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 4 << 20
    """Most bytes of a request body."""
    body_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """Most seconds until a request body has arrived."""
    request_timeout_s: Annotated[float, Meta(gt=0)] = 600.0
    """Most seconds from a request to the end of its answer."""
    default_max_tokens: Annotated[int, Meta(ge=1)] = 4096
    """Most tokens of an answer when the client names no limit and the context has room."""
    recover: Recover = Recover.NEVER
    """Whether an answer may go on with another decode after its first token: never, greedy, any."""
    choices_at_once: Annotated[int, Meta(ge=1, le=128)] = 16
    """Of a request for several choices, how many run at a time."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """Whether requests with fields that nobody knows are refused, or carried out without them:
    refuse, ignore."""
    ping_s: Annotated[float, Meta(gt=0)] = 15.0
    """Seconds of silence after which a stream gets a comment, so that proxies keep it open."""
    slow_client_s: Annotated[float, Meta(gt=0)] = 30.0
    """Seconds that one write may wait for a client before the request is given up."""
    expose_placement: bool = True
    """Whether answers name their workers in x-pdbus-* headers."""
    head_timeout_s: Annotated[float, Meta(gt=0)] = 15.0
    """Most seconds until the head of a request has arrived."""
    max_head_bytes: Annotated[int, Meta(ge=1024)] = 32 << 10
    """Most bytes of a request's line and headers."""
    keys: str | None = None
    """File with API keys and tenants (JSON or TOML, written by `pdbus keys`); without it everybody
    may ask, which is refused on other addresses than loopback."""
    insecure_no_keys: bool = False
    """Listen without API keys on an address that others can reach."""
    limit_share: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many gateway processes share the limits of tenants: each enforces an equal part."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """How many processes listen on the port; they share nothing but the bus."""
    shared_port: bool = False
    """Whether other processes listen on the same port."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port on 127.0.0.1 whose /metrics stands for all processes of this gateway; 0 for none."""
