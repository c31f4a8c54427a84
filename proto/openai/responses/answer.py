"""The answer of `/v1/responses`, whole: also a part of some events."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from proto.ledger import Usage
from proto.openai.api import Answer

__all__ = [
    "AllowedToolChoice",
    "CallItem",
    "EchoedFormat",
    "EchoedReasoning",
    "EchoedText",
    "EchoedTool",
    "IncompleteDetails",
    "Item",
    "ItemStatus",
    "MessageItem",
    "NamedToolChoice",
    "OutputText",
    "ReasoningItem",
    "ReasoningText",
    "ResponseBody",
    "ResponseUsage",
    "response_usage",
]

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: tuple[Any, ...] = ()


class ReasoningText(Answer, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of some reasoning."""

    text: str


class MessageItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...]


class CallItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model wants to be called."""

    id: str
    status: ItemStatus
    call_id: str
    """What `function_call_output` refers to."""
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ReasoningItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought first."""

    id: str
    status: ItemStatus
    summary: tuple[Any, ...] = ()
    content: tuple[ReasoningText, ...]


Item = MessageItem | CallItem | ReasoningItem


class IncompleteDetails(Answer, frozen=True, kw_only=True):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens", "content_filter"]


class EchoedTool(Answer, frozen=True, kw_only=True):
    """A tool of the request."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class NamedToolChoice(Answer, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The one function that had to be called."""

    name: str


class AllowedToolChoice(Answer, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The functions that might be called."""

    mode: Literal["auto", "required"]
    tools: tuple[dict[str, str], ...]


class EchoedFormat(Answer, frozen=True, kw_only=True):
    """The form that was asked for."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    json_schema: dict[str, Any] | UnsetType = field(default=UNSET, name="schema")
    strict: bool | UnsetType = UNSET


class EchoedText(Answer, frozen=True, kw_only=True):
    """What was said about the text."""

    format: EchoedFormat
    verbosity: Literal["low", "medium", "high"]


class EchoedReasoning(Answer, frozen=True, kw_only=True):
    """What was said about reasoning."""

    effort: str | None
    summary: None = None


class InputTokensDetails(Answer, frozen=True, kw_only=True):
    """What became of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Answer, frozen=True, kw_only=True):
    """What the answer's tokens were."""

    reasoning_tokens: int


class ResponseUsage(Answer, frozen=True, kw_only=True):
    """Tokens counted."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseBody(Answer, frozen=True, kw_only=True):
    """The answer, with what was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    """Unix seconds."""
    status: Literal["in_progress", "completed", "incomplete"]
    background: Literal[False] = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: tuple[Item, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: EchoedReasoning
    store: Literal[False] = False
    temperature: float
    top_p: float
    text: EchoedText
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice
    tools: tuple[EchoedTool, ...]
    truncation: Literal["disabled"] = "disabled"
    metadata: dict[str, str]
    user: str | UnsetType = UNSET
    safety_identifier: str | UnsetType = UNSET
    prompt_cache_key: str | UnsetType = UNSET
    usage: ResponseUsage | UnsetType = UNSET
    """With the end."""


def response_usage(usage: Usage, reasoning_tokens: int) -> ResponseUsage:
    """Return the public form of a count."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
