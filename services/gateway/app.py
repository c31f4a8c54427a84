"""The object graph of a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import ASGIApp

from libs.fleet import Fleet
from libs.fleet.announcer import pdbus_version
from libs.lifecycle import Parts
from libs.text import ModelText
from services.gateway.calls import CallOwner, Coordinator
from services.gateway.edge import EdgeServer
from services.gateway.fleet import GatewayFleet
from services.gateway.gateway import GatewayService
from services.gateway.openai import CallRules, EdgeRules, Texts
from services.gateway.openai.texts import ModelDetokenizer
from services.gateway.routes import Identity, http_app
from services.gateway.settings import Settings

__all__ = ["SERVICE", "build"]

SERVICE = "gateway"


async def build(parts: Parts[Settings]) -> GatewayService:
    """Return the service of this process.

    Raises:
        ModelTextError: the model's folder cannot be used.
        OSError: the port is taken.
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
    app = http_app(
        calls=calls,
        fleet=fleet,
        texts=Texts({settings.model: text}, fleet),
        clock=parts.clock,
        rules=_rules(settings),
        identity=Identity(parts.instance, pdbus_version()),
    )
    return GatewayService(
        calls=calls,
        fleet=fleet,
        server=_listen(settings, app),
        clock=parts.clock,
        tasks=parts.tasks,
    )


def _listen(settings: Settings, app: ASGIApp) -> EdgeServer:
    try:
        return EdgeServer(app, host=settings.host, port=settings.port)
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
        ),
    )
