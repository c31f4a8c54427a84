"""The chat endpoint, as far as it differs from others."""

from __future__ import annotations

from dataclasses import dataclass

from proto.openai.chat import ChatRequest, Message
from services.gateway.openai.answers import Asked
from services.gateway.openai.bodies import BodyReader, invalid, unsupported
from services.gateway.openai.chat.shape import ChatShape
from services.gateway.openai.fields import CHAT_FIELDS
from services.gateway.openai.prompts import encode_prompt, render_chat
from services.gateway.openai.requests import Asker, Prompt, Wish, digest_of, spread
from services.gateway.openai.sampling import check_drawing, check_tokens, max_tokens, sampling_of

__all__ = ["ChatApi"]

_ID_BYTES = 4
_READER = BodyReader(ChatRequest, CHAT_FIELDS)


@dataclass(frozen=True, slots=True)
class ChatApi:
    """Implements `services.gateway.openai.endpoint.Api`."""

    route: str = "/v1/chat/completions"
    operation: str = "chat"
    prefix: str = "chatcmpl-"

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        request = _READER.read(body)
        _check(request)
        return request

    async def ask(self, request: ChatRequest, asker: Asker) -> Asked:
        """Return the calls of a request.

        Raises:
            PdbusError: unknown model, unusable messages, or no room in the model's context.
        """
        text, context_tokens = asker.texts.find(request.model)
        rendered = render_chat(text, request.messages, unix_ms=asker.clock.unix_ms())
        ids = await encode_prompt(text, rendered, context_tokens=context_tokens, param="messages")
        check_tokens(request, text.tokenizer.vocabulary)
        limit = max_tokens(
            request.max_completion_tokens or request.max_tokens,
            len(ids) // _ID_BYTES,
            context_tokens,
            asker.rules,
            param="messages",
        )
        wish = Wish(model=request.model, digest=digest_of(request, asker.tenant))
        options = request.stream_options
        return Asked(
            calls=spread(asker, wish, [Prompt(ids, sampling_of(request, limit))]),
            choices_a_prompt=wish.choices,
            stream=bool(request.stream),
            shape=ChatShape(
                choices=wish.choices,
                include_usage=bool(options is not None and options.include_usage),
            ),
        )


def _check(request: ChatRequest) -> None:
    if request.n not in {None, 1}:
        raise unsupported("n", "Only one answer a request is supported.")
    check_drawing(request)
    options = request.stream_options
    if options is not None:
        if not request.stream:
            raise invalid("stream_options", "It is only allowed with 'stream'.")
        if options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation", "It is not supported.")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, path: str) -> None:
    if message.tool_calls:
        raise unsupported(f"{path}.tool_calls", "Tool calls are not supported.")
    if message.annotations:
        raise unsupported(f"{path}.annotations", "Annotations are not supported.")
    if message.content is None:
        raise invalid(f"{path}.content", "Text is expected.")
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{path}.tool_call_id", "It is needed with this role.")
