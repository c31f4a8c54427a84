"""From the messages of a conversation to the one prompt that its model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from libs.text import ModelText, TemplateRefused, Turn
from proto.openai.messages import Message, SaidToolCall
from services.gateway.openai.bodies import invalid

__all__ = ["Setting", "check_messages", "render_chat"]


class Setting(msgspec.Struct, frozen=True):
    """What a conversation is rendered with."""

    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's form."""
    values: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Variables of the template."""
    ask: bool = True
    """Whether the prompt opens the model's turn."""
    go_on: bool = False
    """Whether the model goes on with the last message, which is its own."""


_PLAIN = Setting()


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse messages that no template can say.

    Raises:
        PdbusError: the field of the message at fault is named.
    """
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"{path}.tool_calls", "Only the assistant calls tools.")
        if message.annotations:
            raise invalid(f"{path}.annotations", "Annotations are not supported.")
        if message.content is None and not message.tool_calls:
            raise invalid(f"{path}.content", "Text is expected.")
        if message.role == "tool" and message.tool_call_id is None:
            raise invalid(f"{path}.tool_call_id", "It is needed with this role.")


def render_chat(
    text: ModelText, messages: Sequence[Message], *, unix_ms: int, setting: Setting = _PLAIN
) -> str:
    """Return the prompt of a conversation.

    Raises:
        PdbusError: the model's template does not accept the messages.
    """
    begun = ""
    if setting.go_on:
        last = messages[-1]
        if last.role != "assistant" or last.tool_calls or not last.content:
            raise invalid(
                "continue_final_message", "the last message must be the assistant's, with text."
            )
        begun, messages = _text(last), messages[:-1]
    turns = [_turn(message) for message in messages]
    if setting.tools and "tools" not in text.template.variables:
        turns = _listing(setting.tools, turns)
    try:
        prompt = text.template.render(
            turns,
            unix_ms=unix_ms,
            tools=setting.tools,
            values=setting.values,
            ask=setting.ask or setting.go_on,
        )
    except TemplateRefused as error:
        raise invalid("messages", str(error)) from error
    return prompt + begun


def _listing(tools: Sequence[Mapping[str, Any]], turns: list[Turn]) -> list[Turn]:
    """Return the conversation with its tools in the system's turn: the template has no place."""
    lines = [msgspec.json.encode(tool["function"]).decode() for tool in tools]
    listed = "\n".join(["You can call these functions:", *lines])
    if turns and turns[0].role == "system":
        return [
            msgspec.structs.replace(turns[0], content=f"{turns[0].content}\n\n{listed}"),
            *turns[1:],
        ]
    return [Turn("system", listed), *turns]


def _turn(message: Message) -> Turn:
    return Turn(
        role="system" if message.role == "developer" else message.role,
        content=_text(message),
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=tuple(_call(call) for call in message.tool_calls or ()),
        reasoning_content=message.reasoning_content,
    )


def _text(message: Message) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _call(call: SaidToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"id": call.id, "type": call.type, "function": function}


def _arguments(written: str) -> Any:
    """Return the object that a model wrote, as templates want it; else the text as it is."""
    try:
        return msgspec.json.decode(written, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return written
