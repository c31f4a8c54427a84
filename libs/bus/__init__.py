"""Messages, records and events on NATS. The only room that imports nats."""

from libs.bus.api import (
    Bus,
    BusDown,
    BusError,
    Conflict,
    Endpoint,
    Forbidden,
    NoResponders,
    RequestTimeout,
    Store,
    StoreUnknown,
    Subscription,
    TooLarge,
    Versioned,
)
from libs.bus.client import NatsBus, open_bus
from libs.bus.connect import BusNotStarted, BusSettings
from libs.bus.jetstream import BucketSpec, NatsStore
from libs.bus.server import ServerNotFound, ServerOptions, find_server, server_config
from libs.bus.service import ServiceIdentity

__all__ = [
    "BucketSpec",
    "Bus",
    "BusDown",
    "BusError",
    "BusNotStarted",
    "BusSettings",
    "Conflict",
    "Endpoint",
    "Forbidden",
    "NatsBus",
    "NatsStore",
    "NoResponders",
    "RequestTimeout",
    "ServerNotFound",
    "ServerOptions",
    "ServiceIdentity",
    "Store",
    "StoreUnknown",
    "Subscription",
    "TooLarge",
    "Versioned",
    "find_server",
    "open_bus",
    "server_config",
]
