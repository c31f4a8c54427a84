"""Who asks."""

from __future__ import annotations

import msgspec

from libs.clock.api import Clock
from proto.ids import RequestId, TenantHash
from proto.ledger import Mode
from services.gateway.openai.prompts import Texts
from services.gateway.openai.rules import CallRules

__all__ = ["Asker"]


class Asker(msgspec.Struct, frozen=True):
    """One exchange, as far as it decides about its calls."""

    rid: RequestId
    tenant: TenantHash
    mode: Mode | None
    key: str | None
    """The client's idempotency key."""
    texts: Texts
    clock: Clock
    rules: CallRules
