"""From bytes to a request whose fields are known and well formed."""

from services.gateway.openai.bodies.faults import invalid, unsupported
from services.gateway.openai.bodies.known import read_known
from services.gateway.openai.bodies.reading import BodyReader

__all__ = ["BodyReader", "invalid", "read_known", "unsupported"]
