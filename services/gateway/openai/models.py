"""`GET /v1/models` and `GET /v1/models/{id}`: what can be asked now."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from proto.errors import PdbusError
from proto.openai.models import ModelInfo, ModelList
from services.gateway.edge import exchange_of, send_error, send_json
from services.gateway.openai.prompts import Texts

__all__ = ["ModelEndpoint", "ModelsEndpoint"]


class ModelsEndpoint:
    """All served models.

    Args:
        created: Unix seconds at which this gateway started.
    """

    def __init__(self, texts: Texts, *, created: int) -> None:
        self._texts = texts
        self._created = created

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/v1/models"
        data = tuple(_info(name, size, self._created) for name, size in self._texts.served())
        await send_json(exchange, send, ModelList(data=data))


class ModelEndpoint:
    """One served model."""

    def __init__(self, texts: Texts, *, created: int) -> None:
        self._texts = texts
        self._created = created

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/v1/models/{model}"
        name: str = scope["path_params"]["model"]
        try:
            _, size = self._texts.find(name)
        except PdbusError as error:
            await send_error(exchange, send, error)
            return
        await send_json(exchange, send, _info(name, size, self._created))


def _info(name: str, context_tokens: int, created: int) -> ModelInfo:
    return ModelInfo(id=name, created=created, max_model_len=context_tokens)
