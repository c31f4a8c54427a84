"""`GET /v1/models` and `GET /v1/models/{id}`: what can be asked now."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from proto.errors import PdbusError
from proto.openai.models import ModelInfo, ModelList
from proto.workers import Feature
from services.gateway.edge import exchange_of, send_error, send_json
from services.gateway.openai.prompts import Texts

__all__ = ["ModelEndpoint", "ModelsEndpoint"]


class ModelsEndpoint:
    """All served models that the visitor may ask.

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
        data = tuple(
            _info(self._texts, name, size, self._created)
            for name, size in self._texts.served()
            if exchange.visitor.allows(name)
        )
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
            exchange.visitor.check_model(name)
        except PdbusError as error:
            await send_error(exchange, send, error)
            return
        await send_json(exchange, send, _info(self._texts, name, size, self._created))


def _info(texts: Texts, name: str, context_tokens: int, created: int) -> ModelInfo:
    return ModelInfo(
        id=name,
        created=created,
        root=name,
        max_model_len=context_tokens,
        features=tuple(feature for feature in Feature if texts.can(name, feature)),
    )
