"""From the messages of a conversation to the one prompt that its model was trained on."""

from __future__ import annotations

from libs.text import ModelText, TemplateRefused, Turn
from proto.errors import ErrorCode, PdbusError
from proto.openai.chat import Message

__all__ = ["render_chat"]


def render_chat(text: ModelText, messages: list[Message], *, unix_ms: int) -> str:
    """Return the prompt of a conversation.

    Raises:
        PdbusError: the model's template does not accept the messages.
    """
    try:
        return text.template.render([_turn(message) for message in messages], unix_ms=unix_ms)
    except TemplateRefused as error:
        raise PdbusError(ErrorCode.INVALID_VALUE, str(error), param="messages") from error


def _turn(message: Message) -> Turn:
    content = message.content or ""
    return Turn(
        role="system" if message.role == "developer" else message.role,
        content=content if isinstance(content, str) else "".join(part.text for part in content),
        name=message.name,
        tool_call_id=message.tool_call_id,
    )
