"""The object graph of a gateway."""

from __future__ import annotations

import asyncio
import ipaddress
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.fleet.announcer import pdbus_version
from libs.lifecycle import Parts
from libs.telemetry import get_logger
from libs.text import ModelText
from proto.ids import new_request_id
from proto.keyfile import KeyFileError
from services.gateway.calls import CallOwner, Coordinator
from services.gateway.edge import ConnectionLimits, EdgeServer
from services.gateway.fleet import GatewayFleet
from services.gateway.gateway import GatewayService
from services.gateway.openai import CallRules, EdgeRules, ModelDetokenizer, Texts
from services.gateway.routes import Identity, http_app
from services.gateway.settings import Settings
from services.gateway.tenants import Directory
from services.gateway.workers import fetch

__all__ = ["SERVICE", "build"]

SERVICE = "gateway"


async def build(parts: Parts[Settings]) -> GatewayService:
    """Return the service of this process.

    Raises:
        ModelTextError: the model's folder cannot be used.
        OSError: the port is taken, or the key file cannot be used.
    """
    settings = parts.settings
    text = await asyncio.to_thread(ModelText.load, Path(settings.model_path))
    heard = Fleet()
    calls = Coordinator(
        bus=parts.bus,
        store=parts.store,
        results=parts.results,
        clock=parts.clock,
        tasks=parts.tasks,
        fleet=heard,
        identity=CallOwner(parts.instance, parts.incarnation),
        texts=ModelDetokenizer({settings.model: text}),
    )
    fleet = GatewayFleet(
        bus=parts.bus,
        clock=parts.clock,
        tasks=parts.tasks,
        calls=calls,
        fleet=heard,
        instance=parts.instance,
        incarnation=parts.incarnation,
    )
    directory = await asyncio.to_thread(_directory, settings, parts.clock)
    app = http_app(
        calls=calls,
        fleet=fleet,
        texts=Texts({settings.model: text}, fleet),
        clock=parts.clock,
        rules=_rules(settings),
        identity=Identity(parts.instance, pdbus_version()),
        directory=directory,
        metrics=partial(fetch, settings.metrics_port, "/metrics")
        if settings.metrics_port
        else None,
    )
    return GatewayService(
        calls=calls,
        fleet=fleet,
        server=_listen(settings, app, parts.clock),
        clock=parts.clock,
        tasks=parts.tasks,
        directory=directory,
    )


def _directory(settings: Settings, clock: Clock) -> Directory | None:
    """Return the keys, or None where everybody may ask.

    Raises:
        OSError: the file cannot be used, or is missing where others could reach the gateway.
    """
    if settings.keys is not None:
        try:
            return Directory(Path(settings.keys), clock=clock, share=settings.limit_share)
        except (KeyFileError, OSError) as error:
            raise OSError(f"--keys {settings.keys} cannot be used: {error}") from error
    log = get_logger()
    if _is_loopback(settings.host):
        log.warning("no API keys: every program on this machine may ask", host=settings.host)
    elif settings.insecure_no_keys:
        log.warning("no API keys: whoever reaches this address may ask", host=settings.host)
    else:
        raise OSError(
            f"--host {settings.host} can be reached by others: give --keys FILE (`pdbus keys add`"
            " writes one), or --insecure-no-keys"
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(settings: Settings, app: ASGIApp, clock: Clock) -> EdgeServer:
    limits = ConnectionLimits(
        head_bytes=settings.max_head_bytes,
        head_s=settings.head_timeout_s,
        unread_s=2 * settings.slow_client_s,
    )
    try:
        return EdgeServer(
            app,
            host=settings.host,
            port=settings.port,
            shared=settings.shared_port,
            limits=limits,
            new_id=lambda: new_request_id(clock.unix_ms(), clock.entropy),
        )
    except OSError as error:
        message = f"--port {settings.port} on --host {settings.host} cannot be had: {error}"
        raise OSError(message) from error


def _rules(settings: Settings) -> EdgeRules:
    return EdgeRules(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
        ping_s=settings.ping_s,
        slow_client_s=settings.slow_client_s,
        expose_placement=settings.expose_placement,
        call=CallRules(
            request_timeout_s=settings.request_timeout_s,
            default_max_tokens=settings.default_max_tokens,
            recover=settings.recover,
            choices_at_once=settings.choices_at_once,
        ),
        unknown_fields=settings.unknown_fields,
    )
