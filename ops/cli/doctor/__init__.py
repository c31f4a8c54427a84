"""Explaining what keeps KV from moving, or from moving fast, and what to do about it."""

from ops.cli.doctor.checks import HOST_CHECKS, examine
from ops.cli.doctor.facts import Facts, Interface, gather_facts
from ops.cli.doctor.findings import Finding, Level
from ops.cli.doctor.fleet import examine_fleet

__all__ = [
    "HOST_CHECKS",
    "Facts",
    "Finding",
    "Interface",
    "Level",
    "examine",
    "examine_fleet",
    "gather_facts",
]
