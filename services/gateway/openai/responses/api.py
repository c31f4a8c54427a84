"""The responses endpoint: a chat request in other words. Nothing is stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from proto.errors import PdbusError
from proto.openai.chat import ChatRequest
from proto.openai.responses.request import ResponseRequest
from services.gateway.openai.answers import Asked
from services.gateway.openai.bodies import BodyReader, invalid, unsupported
from services.gateway.openai.chat import ChatApi
from services.gateway.openai.requests import Asker, digest_of
from services.gateway.openai.responses.chat import AsChat, as_chat
from services.gateway.openai.responses.fields import FIELDS
from services.gateway.openai.responses.shape import ResponseShape

__all__ = ["ResponseApi", "ResponseAsk"]


@dataclass(frozen=True, slots=True)
class ResponseAsk:
    """A request, and what it comes to."""

    request: ResponseRequest
    chat: ChatRequest
    made: AsChat


@dataclass(frozen=True, slots=True)
class ResponseApi:
    """Implements `services.gateway.openai.endpoint.Api`."""

    route: str = "/v1/responses"
    operation: str = "chat"
    prefix: str = "resp_"
    reader: BodyReader[ResponseRequest] = field(
        default_factory=lambda: BodyReader(ResponseRequest, FIELDS)
    )
    chat: ChatApi = field(default_factory=ChatApi)

    def read(self, body: bytes) -> ResponseAsk:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        request = self.reader.read(body)
        _check(request)
        made = as_chat(request)
        try:
            chat = self.chat.read(msgspec.json.encode(made.body))
        except PdbusError as error:
            raise made.error(error) from error
        return ResponseAsk(request, chat, made)

    async def ask(self, request: ResponseAsk, asker: Asker) -> Asked:
        """Return the call of a request.

        Raises:
            PdbusError: unknown model, unusable input, or no room in the model's context.
        """
        try:
            asked = await self.chat.ask(request.chat, asker)
        except PdbusError as error:
            raise request.made.error(error) from error
        digest = digest_of(request.request, asker.tenant)
        return msgspec.structs.replace(
            asked,
            calls=tuple(msgspec.structs.replace(call, digest=digest) for call in asked.calls),
            shape=ResponseShape(request.request),
        )


def _check(request: ResponseRequest) -> None:
    options = request.stream_options
    if options is not None:
        if not request.stream:
            raise invalid("stream_options", "It is only allowed with 'stream'.")
        if options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation", "It is not supported.")
    form = request.text.format if request.text is not None else None
    if form is not None and form.type == "json_schema":
        for name, value in (("name", form.name), ("schema", form.json_schema)):
            if value is None:
                raise invalid(f"text.format.{name}", "it is needed with type 'json_schema'.")
    choice = request.tool_choice
    # A choice of several tools cannot be hashed.
    plain = choice is None or choice == "none" or choice == "auto"  # noqa: PLR1714
    if not request.tools and not plain:
        raise invalid("tool_choice", "there are no tools.")
