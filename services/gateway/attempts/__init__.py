"""Attempts: finding a place, starting both sides, following the stream, going on elsewhere."""

from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.drive import Attempts, Outcome
from services.gateway.attempts.follow import Follower
from services.gateway.attempts.mailroom import Mailroom
from services.gateway.attempts.recovery import Budget, Recovery
from services.gateway.attempts.start import AttemptLost, stop_both

__all__ = [
    "Assembler",
    "AttemptLost",
    "Attempts",
    "Budget",
    "Follower",
    "Mailroom",
    "Outcome",
    "Recovery",
    "stop_both",
]
