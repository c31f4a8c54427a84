"""`POST /v1/chat/completions`: the request, and the answer that comes in one piece."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from proto.gateway import FinishReason
from proto.openai.api import Answer, Body
from proto.openai.drawing import (
    MAX_CHOICES,
    MAX_STOPS,
    Bias,
    Count,
    Limit,
    MinP,
    Penalty,
    Priority,
    Repetition,
    ResponseFormat,
    Salt,
    Seed,
    Stop,
    StopIds,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
)
from proto.openai.logprobs import ChoiceLogprobs
from proto.openai.messages import Message, TextPart
from proto.openai.tools import MAX_TOOLS, Tool, ToolChoice
from proto.openai.usage import UsageInfo

__all__ = [
    "MAX_MESSAGES",
    "MAX_STOPS",
    "AnswerMessage",
    "CalledFunction",
    "ChatCompletion",
    "ChatRequest",
    "Choice",
    "Effort",
    "Message",
    "StreamOptions",
    "TextPart",
    "ToolCall",
]

MAX_MESSAGES = 4096

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""OpenAI's `reasoning_effort`."""


class ChatRequest(Body, frozen=True, kw_only=True):
    """The fields that are carried out; `services.gateway.openai.fields` tells of all others.

    None means "not given" everywhere.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    min_tokens: Count | None = None
    repetition_penalty: Repetition | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | dict[str, Any] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    separate_reasoning: bool | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None


class CalledFunction(Answer, frozen=True, kw_only=True):
    """A function and its arguments."""

    name: str
    arguments: str
    """JSON text."""


class ToolCall(Answer, frozen=True, kw_only=True):
    """A call that the model asks for."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(Answer, frozen=True, kw_only=True):
    """The turn that the model adds."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """Null where there are only tool calls."""
    refusal: None = None
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class Choice(Answer, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Answer, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Unix seconds."""
    model: str
    choices: tuple[Choice, ...]
    usage: UsageInfo
