"""UCX workers, one lane each, driven by events on one thread. Its `port.py` alone knows ucxx."""

from libs.transfer.ucx.channel import Channel
from libs.transfer.ucx.lanes import SHARED_MEMORY, choose_lane, host_identity
from libs.transfer.ucx.loop import Loop
from libs.transfer.ucx.port import LaneContext, Line, Operation, Port, TransportError

__all__ = [
    "SHARED_MEMORY",
    "Channel",
    "LaneContext",
    "Line",
    "Loop",
    "Operation",
    "Port",
    "TransportError",
    "choose_lane",
    "host_identity",
]
