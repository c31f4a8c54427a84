"""The deterministic simulator: the real service classes on virtual time, a virtual bus and engines.

One seed is one world; the same seed gives the same world, event by event.
"""

__all__: list[str] = []
