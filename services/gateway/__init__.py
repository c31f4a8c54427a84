"""The REST edge and owner of each request: HTTP in front, the bus behind.

`edge` is HTTP, `openai` is the public API, `request` coordinates a request on the bus.
"""

__all__: list[str] = []
