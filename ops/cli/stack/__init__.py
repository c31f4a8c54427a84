"""The processes of one stack on this machine: layout, supervision, readiness, record."""

from ops.cli.stack.layout import StackOptions
from ops.cli.stack.record import SlotRecord, SlotState, StackRecord, StackState
from ops.cli.stack.supervisor import Supervisor

__all__ = [
    "SlotRecord",
    "SlotState",
    "StackOptions",
    "StackRecord",
    "StackState",
    "Supervisor",
]
