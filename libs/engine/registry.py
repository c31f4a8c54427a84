"""Which engines there are; each is imported only in the host that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import cast

from libs.engine.api import Engine
from libs.engine.options import EngineKind, HostOptions

__all__ = ["REGISTRY", "Build", "Built", "build"]

Built = tuple[Engine, asyncio.AbstractEventLoop | None]
"""An engine, and the loop it must run on where the engine brings its own."""

Build = Callable[[HostOptions], Built]
"""Runs in the host's main thread before any loop does."""

REGISTRY: dict[EngineKind, tuple[str, str]] = {
    EngineKind.SCRIPTED: ("libs.engine.scripted", "build"),
    EngineKind.SGLANG: ("libs.engine.sglang", "build"),
}
"""Module and function that make each kind."""


def build(options: HostOptions) -> Built:
    """Return the engine that the options ask for, in this process.

    Raises:
        EngineDead: it cannot be made; the text says why.
    """
    module, function = REGISTRY[options.kind]
    make = cast("Build", getattr(import_module(module), function))
    return make(options)
