"""Tools that a model may call, and which of them it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from proto.openai.api import Body

__all__ = [
    "MAX_TOOLS",
    "AllowedTools",
    "FunctionName",
    "FunctionTool",
    "NamedChoice",
    "Tool",
    "ToolChoice",
]

MAX_TOOLS = 128

FunctionName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionTool(Body, frozen=True, kw_only=True):
    """A function, as its caller describes it."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=65_536)] | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of an object; None for no parameters."""
    strict: bool | None = None


class Tool(Body, frozen=True, kw_only=True):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: FunctionTool


class NamedChoice(Body, frozen=True, kw_only=True):
    """The function that must be called."""

    name: FunctionName


class _NamedTool(Body, frozen=True, kw_only=True):
    type: Literal["function"]
    function: NamedChoice


class AllowedTools(Body, frozen=True, kw_only=True):
    """The tools that may be called this time."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolChoice(Body, frozen=True, kw_only=True):
    """One function, or some of the tools."""

    type: Literal["function", "allowed_tools"]
    function: NamedChoice | None = None
    allowed_tools: AllowedTools | None = None
