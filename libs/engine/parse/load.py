"""Getting hold of SGLang's parsers, once at the start of a host."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from libs.engine.parse.answer import Answer
from libs.engine.parse.api import AnswerParser, UnreadableTools
from libs.engine.parse.calls import Calls
from libs.engine.parse.names import check_names, known_names
from libs.engine.parse.thoughts import Thoughts
from proto.host import Job
from proto.output import Parsing
from proto.workers import Feature

__all__ = ["load_parsers"]

_PROTOCOL = "sglang.srt.entrypoints.openai.protocol"
_FORCED = "sglang.srt.function_call.json_array_parser"
_CALLS = "sglang.srt.function_call.function_call_parser"
_THOUGHTS = "sglang.srt.parser.reasoning_parser"
_MARKED = frozenset({"apertus2509", "gemma4", "gpt-oss", "inkling", "kimi_k3", "mistral", "muse"})
_TALKATIVE = ("sglang.srt.function_call", "sglang.srt.parser")
"""They log what models say."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """SGLang's parsers for one model. Without a tool parser only forced calls are told apart."""

    tool: type[Any]
    forced: Callable[[], Any]
    calls: Callable[[list[Any]], Any] | None
    thoughts: Callable[[bool], Any] | None
    marked: bool = False
    """The marks of the reasoning are special tokens."""

    @property
    def features(self) -> tuple[Feature, ...]:
        have = ((Feature.TOOLS, self.calls), (Feature.REASONING, self.thoughts))
        return tuple(feature for feature, maker in have if maker is not None)

    def wants_marks(self, job: Job) -> bool:
        wanted = job.parsing
        if wanted is None or wanted.forced:
            return False
        calls = bool(wanted.tools) and self.calls is not None
        return calls or (wanted.reasoning and self.marked)

    def parser(self, job: Job) -> AnswerParser | None:
        wanted = job.parsing
        if wanted is None:
            return None
        calls = self._calls(wanted)
        # A guide describes the whole answer: there is no room for reasoning before it.
        thinks = wanted.reasoning and not wanted.forced and job.sampling.guide is None
        thoughts = None
        if thinks and self.thoughts is not None:
            thoughts = Thoughts(self.thoughts(calls is not None))
        if calls is None and thoughts is None:
            return None
        return Answer(thoughts, calls)

    def _calls(self, wanted: Parsing) -> Calls | None:
        if not wanted.tools:
            return None
        make = self.calls
        if make is None and not wanted.forced:
            return None
        try:
            tools = [self.tool.model_validate(tool) for tool in json.loads(wanted.tools)]
        except (ValueError, TypeError) as error:
            raise UnreadableTools(f"tools: {error}") from error
        if wanted.forced or make is None:
            return Calls(self.forced(), tools, forced=True)
        return Calls(make(tools), tools)


def load_parsers(
    tool_parser: str, reasoning_parser: str, *, tokenizer: Any = None, light: bool = False
) -> _Loaded:
    """Return the parsers that an engine was told to use.

    Args:
        tool_parser: SGLang's name of the model's format of tool calls; empty for none.
        reasoning_parser: SGLang's name of the model's format of reasoning; empty for none.
        tokenizer: of the model, for the formats that want it.
        light: load as little of SGLang as there must be; for processes that do not run it.

    Raises:
        ValueError: there is no parser of that name, or it cannot be loaded.
    """
    check_names(tool_parser, reasoning_parser)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if light:
        _stand_in()
    try:
        tool = importlib.import_module(_PROTOCOL).Tool
        forced = importlib.import_module(_FORCED).JsonArrayParser
        calls = _calls_maker(tool_parser, tokenizer, light=light) if tool_parser else None
        thoughts = _thoughts_maker(reasoning_parser, tokenizer) if reasoning_parser else None
        # Some want what only their own models bring: better told now than with the first request.
        if calls is not None:
            calls([])
        if thoughts is not None:
            thoughts(calls is not None)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        named = " and ".join(filter(None, (tool_parser, reasoning_parser)))
        text = f"the parsers {named} cannot be used here: {error}"
        raise ValueError(text) from error
    return _Loaded(tool, forced, calls, thoughts, reasoning_parser in _MARKED)


def _calls_maker(name: str, tokenizer: Any, *, light: bool) -> Callable[[list[Any]], Any]:
    if light:
        module, owner = known_names().tools[name]
        detector: Callable[[], Any] = getattr(_import_light(module), owner)
        return lambda _tools: detector()
    parser: Any = importlib.import_module(_CALLS).FunctionCallParser
    return lambda tools: parser(tools, name, tokenizer=tokenizer).detector


def _thoughts_maker(name: str, tokenizer: Any) -> Callable[[bool], Any]:
    parser: Any = importlib.import_module(_THOUGHTS).ReasoningParser
    return lambda calls: parser(name, tokenizer=tokenizer, tool_call_parser_active=calls).detector


def _import_light(module: str) -> ModuleType:
    """Import a module without xgrammar, or with it where it cannot be without."""
    try:
        return importlib.import_module(module)
    except ImportError:
        known = cast("dict[str, ModuleType | None]", sys.modules)
        if known.get("xgrammar", known["sys"]) is not None:
            raise
        del sys.modules["xgrammar"]
        return importlib.import_module(module)


def _stand_in() -> None:
    """Let SGLang's parsers be imported without the rest of it.

    The package's own module imports torch and all engines; an empty one with the same path does for
    the parsers. They can do without xgrammar, which would import torch too. A process that has
    imported either keeps what it has.
    """
    if "sglang" not in sys.modules:
        spec = find_spec("sglang")
        if spec is None:
            raise ValueError("parsers of answers need the package sglang")
        package = ModuleType("sglang")
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__spec__ = spec
        sys.modules["sglang"] = package
    sys.modules.setdefault("xgrammar", None)  # pyright: ignore[reportArgumentType] - "not there"
