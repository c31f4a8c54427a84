"""Who is alive: every process announces itself once a second, and whoever cares listens."""

from libs.fleet.announcer import Announcer
from libs.fleet.listener import FleetListener
from libs.fleet.pairs import PairRefusal, refusal_of, refusals
from libs.fleet.view import DEAD_S, SUSPECT_S, Fleet, Health, Member

__all__ = [
    "DEAD_S",
    "SUSPECT_S",
    "Announcer",
    "Fleet",
    "FleetListener",
    "Health",
    "Member",
    "PairRefusal",
    "refusal_of",
    "refusals",
]
