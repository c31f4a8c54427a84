"""How an answer of `/v1/responses` tells what was asked for, and how its items are worded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.responses.answer import (
    AllowedToolChoice,
    CallItem,
    EchoedFormat,
    EchoedReasoning,
    EchoedText,
    EchoedTool,
    IncompleteDetails,
    Item,
    ItemStatus,
    MessageItem,
    NamedToolChoice,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseBody,
    ResponseUsage,
    response_usage,
)
from proto.openai.responses.request import (
    AllowedFunctions,
    NamedTool,
    ResponseRequest,
    TextFormat,
)
from services.gateway.openai.answers.said import SaidCall
from services.gateway.openai.frames import Head

__all__ = ["Wording"]

Choice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice

_CUT: dict[FinishReason, Literal["max_output_tokens", "content_filter"]] = {
    FinishReason.LENGTH: "max_output_tokens",
}


class Wording:
    """The words of one answer.

    Args:
        request: what is echoed.
        head: id and time.
    """

    def __init__(self, request: ResponseRequest, head: Head) -> None:
        self._request = request
        self._head = head

    def begun(self) -> ResponseBody:
        """Return the answer before anything was said."""
        return self._body("in_progress", ())

    def ended(self, items: Sequence[Item], finish: FinishReason, usage: Usage) -> ResponseBody:
        """Return the whole answer."""
        cut = _CUT.get(finish)
        return self._body(
            "completed" if cut is None else "incomplete",
            tuple(items),
            None if cut is None else IncompleteDetails(reason=cut),
            response_usage(usage, usage.reasoning_tokens),
        )

    def message(self, place: int, text: str | None, status: ItemStatus) -> MessageItem:
        """Return what the model says; None where it has not begun."""
        content = () if text is None else (OutputText(text=text),)
        return MessageItem(id=f"msg_{self._head.rid}_{place}", status=status, content=content)

    def reasoning(self, place: int, text: str | None, status: ItemStatus) -> ReasoningItem:
        """Return what the model thinks; None where it has not begun."""
        content = () if text is None else (ReasoningText(text=text),)
        return ReasoningItem(id=f"rs_{self._head.rid}_{place}", status=status, content=content)

    def call(self, place: int, said: SaidCall, status: ItemStatus) -> CallItem:
        """Return a call of a function."""
        return CallItem(
            id=f"fc_{self._head.rid}_{place}",
            status=status,
            call_id=said.id,
            name=said.name,
            arguments=said.arguments,
        )

    def _body(
        self,
        status: Literal["in_progress", "completed", "incomplete"],
        output: tuple[Item, ...],
        cut: IncompleteDetails | None = None,
        usage: ResponseUsage | UnsetType = UNSET,
    ) -> ResponseBody:
        request = self._request
        return ResponseBody(
            id=f"resp_{self._head.rid}",
            created_at=self._head.created,
            status=status,
            incomplete_details=cut,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            model=self._head.model,
            output=output,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=EchoedReasoning(effort=request.reasoning and request.reasoning.effort),
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            text=EchoedText(
                format=_format(request.text and request.text.format),
                verbosity=(request.text and request.text.verbosity) or "medium",
            ),
            tool_choice=_tool_choice(request),
            tools=_tools(request),
            metadata=request.metadata or {},
            user=_or_unset(request.user),
            safety_identifier=_or_unset(request.safety_identifier),
            prompt_cache_key=_or_unset(request.prompt_cache_key),
            usage=usage,
        )


def _or_unset(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


def _format(asked: TextFormat | None) -> EchoedFormat:
    if asked is None:
        return EchoedFormat(type="text")
    return EchoedFormat(
        type=asked.type,
        name=_or_unset(asked.name),
        description=_or_unset(asked.description),
        json_schema=UNSET if asked.json_schema is None else asked.json_schema,
        strict=UNSET if asked.strict is None else asked.strict,
    )


def _tool_choice(request: ResponseRequest) -> Choice:
    choice = request.tool_choice
    if choice is None:
        return "auto"
    if isinstance(choice, NamedTool):
        return NamedToolChoice(name=choice.name)
    if isinstance(choice, AllowedFunctions):
        tools = tuple({"type": tool.type, "name": tool.name} for tool in choice.tools)
        return AllowedToolChoice(mode=choice.mode, tools=tools)
    return choice


def _tools(request: ResponseRequest) -> tuple[EchoedTool, ...]:
    return tuple(
        EchoedTool(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
        for tool in request.tools or ()
    )
