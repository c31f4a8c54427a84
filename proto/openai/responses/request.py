"""`POST /v1/responses`: the request. Nothing is stored: each request carries its conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from proto.openai.api import Body

__all__ = [
    "MAX_ITEMS",
    "MAX_TOOLS",
    "AllowedFunction",
    "AllowedFunctions",
    "InputItem",
    "InputPart",
    "NamedTool",
    "Reasoning",
    "ResponseRequest",
    "ResponseStreamOptions",
    "ResponseTool",
    "TextFormat",
    "TextOptions",
]

MAX_ITEMS = 4096
MAX_TOOLS = 128

_Label = Annotated[str, Meta(max_length=512)]
_Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
_Labels = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class InputPart(Body, frozen=True, kw_only=True):
    """A piece of text; the last fields are those of parts that come back from an answer."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


_Text = str | list[InputPart]


class InputItem(Body, frozen=True, kw_only=True):
    """One entry of the conversation: a message, a call of a function, or what the call gave.

    Reasoning that comes back is accepted and not shown to the model again, as templates want it.
    """

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: _Text | None = None
    call_id: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    name: _Name | None = None
    arguments: str | None = None
    output: _Text | None = None
    id: _Label | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: None = None
    phase: None = None


class ResponseTool(Body, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Body, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The function that the model must call."""

    name: _Name


class AllowedFunction(Body, frozen=True, kw_only=True):
    """One of the functions that may be called."""

    type: Literal["function"]
    name: _Name


class AllowedFunctions(Body, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The only functions of the request that may be called, or one of which must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFunction], Meta(min_length=1, max_length=MAX_TOOLS)]


class TextFormat(Body, frozen=True, kw_only=True):
    """The form of the answer; a schema needs a name."""

    type: Literal["text", "json_object", "json_schema"]
    name: _Name | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = field(default=None, name="schema")
    strict: bool | None = None


class TextOptions(Body, frozen=True, kw_only=True):
    """What is said about the text of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """No effect."""


class Reasoning(Body, frozen=True, kw_only=True):
    """How much the model thinks before it answers."""

    effort: _Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """No effect: reasoning is given as it is."""
    generate_summary: None = None


class ResponseStreamOptions(Body, frozen=True, kw_only=True):
    """What a stream carries beside the answer."""

    include_obfuscation: bool | None = None


class ResponseRequest(Body, frozen=True, kw_only=True):
    """The fields that are carried out. None means "not given" everywhere."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    metadata: _Labels | None = None
    user: _Label | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: _Label | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
