"""Time and chance, as ports: nothing else in the core may ask the machine for either."""

from libs.clock.api import Clock
from libs.clock.system import SystemClock

__all__ = ["Clock", "SystemClock"]
