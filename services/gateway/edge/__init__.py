"""HTTP without any knowledge of the API: exchanges, bodies, errors, events, disconnects, server."""

from services.gateway.edge.body import read_body
from services.gateway.edge.connection import BODY, ConnectionLimits
from services.gateway.edge.errors import send_error
from services.gateway.edge.events import EventStream
from services.gateway.edge.exchange import Exchange, Exchanges, exchange_of
from services.gateway.edge.presence import ClientGone, while_present
from services.gateway.edge.reply import send_json
from services.gateway.edge.server import EdgeServer

__all__ = [
    "BODY",
    "ClientGone",
    "ConnectionLimits",
    "EdgeServer",
    "EventStream",
    "Exchange",
    "Exchanges",
    "exchange_of",
    "read_body",
    "send_error",
    "send_json",
    "while_present",
]
