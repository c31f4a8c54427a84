"""The chat request that a request for a response comes to, and the way back for errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from proto.errors import PdbusError
from proto.openai.responses.request import (
    AllowedFunctions,
    InputItem,
    InputPart,
    NamedTool,
    ResponseRequest,
    ResponseTool,
)
from services.gateway.openai.bodies import invalid

__all__ = ["AsChat", "as_chat"]

_MESSAGE = re.compile(r"^messages\[(\d+)\]")
_NAMES = (
    (re.compile(r"^messages"), "input"),
    (re.compile(r"^max_completion_tokens"), "max_output_tokens"),
    (re.compile(r"^response_format\.json_schema"), "text.format"),
    (re.compile(r"^response_format"), "text.format"),
    (re.compile(r"^reasoning_effort"), "reasoning.effort"),
    (re.compile(r"^tool_choice\.allowed_tools(\.tools\[\d+\])\.function"), r"tool_choice\1"),
    (re.compile(r"^(tools\[\d+\]|tool_choice)\.function"), r"\1"),
)


@dataclass(slots=True)
class AsChat:
    """A chat request in the making."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sources: list[str] = field(default_factory=list[str])
    """The field that each message comes from."""
    body: dict[str, Any] = field(default_factory=dict[str, Any])

    def error(self, error: PdbusError) -> PdbusError:
        """Return an error about the chat request as one about the request that was made."""
        param = error.param
        if param is None:
            return error
        ours = self._param(param)
        detail = error.detail.replace(f"'{param}'", f"'{ours}'")
        if ours.startswith("input"):
            detail = detail.replace("the messages have", "the input has")
            detail = detail.replace("in the messages", "in the input")
        return PdbusError(error.code, detail, param=ours, retry_after_s=error.retry_after_s)

    def _param(self, param: str) -> str:
        found = _MESSAGE.match(param)
        if found is not None and int(found[1]) < len(self.sources):
            return self.sources[int(found[1])] + param[found.end() :]
        for pattern, name in _NAMES:
            if pattern.match(param):
                return pattern.sub(name, param)
        return param


def as_chat(request: ResponseRequest) -> AsChat:
    """Return the chat request that a request comes to.

    Raises:
        PdbusError: an item is not complete.
    """
    made = AsChat()
    if request.instructions is not None:
        _add(made, "instructions", {"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        _add(made, "input", {"role": "user", "content": request.input})
    else:
        for index, item in enumerate(request.input):
            _item(made, f"input[{index}]", item)
        if not made.messages:
            raise invalid("input", "a message is expected.")
    made.body = {"messages": made.messages, **dict(_options(request))}
    return made


def _options(request: ResponseRequest) -> Iterator[tuple[str, Any]]:
    yield "model", request.model
    yield "max_completion_tokens", request.max_output_tokens
    yield "temperature", request.temperature
    yield "top_p", request.top_p
    yield "stream", request.stream
    form = request.text.format if request.text is not None else None
    if form is not None and form.type != "text":
        schema = {
            "name": form.name,
            "description": form.description,
            "schema": form.json_schema,
            "strict": form.strict,
        }
        yield (
            "response_format",
            {"type": form.type, **({"json_schema": schema} if form.name is not None else {})},
        )
    if request.reasoning is not None:
        yield "reasoning_effort", request.reasoning.effort
    if request.tools:
        yield "tools", [_tool(tool) for tool in request.tools]
        yield "parallel_tool_calls", request.parallel_tool_calls
        yield "tool_choice", _choice(request)


def _choice(request: ResponseRequest) -> Any:
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        return _named(choice.name)
    if isinstance(choice, AllowedFunctions):
        tools = [_named(tool.name) for tool in choice.tools]
        allowed = {"mode": choice.mode, "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _tool(tool: ResponseTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _item(made: AsChat, path: str, item: InputItem) -> None:
    match item.type:
        case "message":
            _needs(path, item, "role", "content")
            _add(made, path, {"role": item.role, "content": _parts(item.content)})
        case "function_call":
            _needs(path, item, "call_id", "name", "arguments")
            _call(made, path, item)
        case "function_call_output":
            _needs(path, item, "call_id", "output")
            said = {"role": "tool", "tool_call_id": item.call_id, "content": _parts(item.output)}
            _add(made, path, said)
        case "reasoning":
            pass


def _call(made: AsChat, path: str, item: InputItem) -> None:
    """Add a call to the turn of the assistant that it belongs to."""
    last: dict[str, Any] | None = made.messages[-1] if made.messages else None
    if last is None or last["role"] != "assistant":
        last = {"role": "assistant", "content": None}
        _add(made, path, last)
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    last.setdefault("tool_calls", []).append(call)


def _needs(path: str, item: InputItem, *names: str) -> None:
    for name in names:
        if getattr(item, name) is None:
            raise invalid(f"{path}.{name}", f"it is needed with type '{item.type}'.")


def _parts(content: str | list[InputPart] | None) -> Any:
    if content is None or isinstance(content, str):
        return content
    return [{"type": "text", "text": part.text} for part in content]


def _add(made: AsChat, source: str, message: dict[str, Any]) -> None:
    made.messages.append(message)
    made.sources.append(source)
