"""What carrying out a call needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from libs.bus.api import Bus, Store
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.lifecycle.tasks import Tasks
from proto.results import StoredResult
from services.gateway.ledger import Ledger

if TYPE_CHECKING:
    from services.gateway.attempts.mailroom import Mailroom
    from services.gateway.attempts.recovery import Budget

__all__ = ["Detokenizer", "NoTexts", "Ports"]


class Detokenizer(Protocol):
    """Turns emitted tokens back into text, to know whether all of it has been shown."""

    def text_of(self, model: str, ids: bytes) -> str | None:
        """Return the text of some tokens (u32 LE), or None if the model is not known here."""
        ...


class NoTexts:
    """Knows no model: then no answer is ever continued elsewhere."""

    def text_of(self, model: str, ids: bytes) -> str | None:
        """Return None."""
        del model, ids
        return None


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of a call."""

    bus: Bus
    clock: Clock
    tasks: Tasks
    ledger: Ledger
    results: Store[StoredResult]
    mailroom: Mailroom
    chronicle: Chronicle
    fleet: Fleet
    texts: Detokenizer
    budget: Budget
