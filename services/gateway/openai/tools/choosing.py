"""Which tools may be called, and whether one must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from proto.openai.tools import Tool, ToolChoice
from proto.output import Parsing
from proto.sampling import Guide
from services.gateway.openai.bodies import invalid
from services.gateway.openai.guides import check_schema, schema_guide
from services.gateway.openai.tools.forced import calls_schema

__all__ = ["Chosen", "choose"]

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
"""The parameters of a function that has none."""


class Chosen(msgspec.Struct, frozen=True):
    """What may be called."""

    tools: tuple[Tool, ...] = ()
    guide: Guide | None = None
    """Makes sure that the answer is a list of calls, where it must be."""

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as templates and parsers read them."""
        return [_plain(tool) for tool in self.tools]

    def parsing(self, *, reasoning: bool) -> Parsing | None:
        """Return how decode takes the answer apart; None where there is nothing to."""
        if not self.tools and not reasoning:
            return None
        tools = msgspec.json.encode(self.shown).decode() if self.tools else ""
        return Parsing(tools=tools, forced=self.guide is not None, reasoning=reasoning)


def choose(
    tools: Sequence[Tool] | None,
    choice: Literal["none", "auto", "required"] | ToolChoice | None,
    *,
    parallel: bool,
) -> Chosen:
    """Return the tools that may be called.

    Args:
        parallel: whether one answer may have several calls.

    Raises:
        PdbusError: a definition is not valid, or the choice names no tool.
    """
    offered = tuple(tools or ())
    _check(offered)
    if not offered:
        # A choice of several tools cannot be hashed.
        if not (choice is None or choice == "none" or choice == "auto"):  # noqa: PLR1714
            raise invalid("tool_choice", "it is only allowed with 'tools'.")
        return Chosen()
    if choice == "none":
        return Chosen()
    if choice is None or choice == "auto":
        return Chosen(offered)
    if choice == "required":
        return _forced(offered, most=None if parallel else 1)
    return _picked(offered, choice, most=None if parallel else 1)


def _picked(offered: tuple[Tool, ...], choice: ToolChoice, *, most: int | None) -> Chosen:
    given = choice.function is not None, choice.allowed_tools is not None
    if given != (choice.type == "function", choice.type == "allowed_tools"):
        raise invalid("tool_choice", f"'{choice.type}' is expected beside the type, and alone.")
    if choice.allowed_tools is not None:
        names = [entry.function.name for entry in choice.allowed_tools.tools]
        chosen = _named(offered, names)
        must = choice.allowed_tools.mode == "required"
        return _forced(chosen, most=most) if must else Chosen(chosen)
    return _forced(_named(offered, [choice.function.name] if choice.function else []), most=1)


def _named(offered: tuple[Tool, ...], names: list[str]) -> tuple[Tool, ...]:
    known = {tool.function.name: tool for tool in offered}
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise invalid("tool_choice", f"'{missing}' is not among the tools.")
    return tuple(known[name] for name in dict.fromkeys(names))


def _forced(tools: tuple[Tool, ...], *, most: int | None) -> Chosen:
    functions = [(tool.function.name, tool.function.parameters or NOTHING) for tool in tools]
    guide = schema_guide(calls_schema(functions, most=most), "tools")
    return Chosen(tools, guide)


def _check(tools: tuple[Tool, ...]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}].function"
        if tool.function.name in names:
            raise invalid(f"{path}.name", "another tool has this name.")
        names.add(tool.function.name)
        parameters = tool.function.parameters
        if parameters is None:
            continue
        check_schema(parameters, param=f"{path}.parameters")
        if parameters.get("type", "object") != "object":
            raise invalid(f"{path}.parameters", "the schema of an object is expected.")


def _plain(tool: Tool) -> dict[str, Any]:
    function = tool.function
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = function.parameters or NOTHING
    if function.strict is not None:
        shown["strict"] = function.strict
    return {"type": "function", "function": shown}
