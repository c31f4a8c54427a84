"""Chat templates: a conversation to the one prompt that the model was trained on.

Templates come with models, so they run in jinja2's immutable sandbox. Rendering is bounded in
size, and the conversation is data, never code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from libs.text.errors import ModelTextError, TemplateRefused

__all__ = ["MAX_PROMPT_CHARS", "MAX_TEMPLATE_CHARS", "ChatTemplate", "Turn"]

MAX_TEMPLATE_CHARS = 1 << 20
MAX_PROMPT_CHARS = 16 << 20

_RESERVED = frozenset(
    {
        *("messages", "add_generation_prompt", "tools", "documents", "strftime_now"),
        *("raise_exception", "continue_final_message"),
    }
)
_NOTHING: Mapping[str, Any] = {}
_UNRENDERABLE = "The model's chat template cannot render these messages."
_SCRIPT_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What the expressions of a template can raise on a conversation that they did not expect."""


class Turn(msgspec.Struct, frozen=True):
    """One message, as templates read it."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's form, with the arguments as an object where they are one."""
    reasoning_content: str | None = None


class ChatTemplate:
    """A compiled template with the special tokens of its model.

    Attributes:
        variables: the names that it reads from outside.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile a template.

        Raises:
            ModelTextError: it is too long or no valid template.
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelTextError(
                f"the chat template is longer than {MAX_TEMPLATE_CHARS} characters"
            )
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateSyntaxError as error:
            raise ModelTextError(f"the chat template is not valid: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._given = dict(self._template.globals)
        """What templates have without being given it."""

    def reserved(self, name: str) -> bool:
        """Return whether a caller's own value must not have this name."""
        return name in _RESERVED or name in self._special_tokens

    def render(
        self,
        turns: Sequence[Turn],
        *,
        unix_ms: int,
        tools: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] = _NOTHING,
        ask: bool = True,
    ) -> str:
        """Return the prompt that asks the model for the next turn.

        Args:
            turns: the conversation.
            unix_ms: the time that `strftime_now` tells, in UTC.
            tools: what the model may call, in OpenAI's form.
            values: further variables of the template; none of them may be reserved.
            ask: whether the prompt ends with what opens the model's turn.

        Raises:
            TemplateRefused: the template does not accept the conversation.
        """
        now = datetime.fromtimestamp(unix_ms / 1000, tz=UTC)
        known = {
            **self._given,
            **values,
            **self._special_tokens,
            "messages": [_as_mapping(turn) for turn in turns],
            "add_generation_prompt": ask,
            "tools": list(tools) or None,
            "documents": None,
            "strftime_now": now.strftime,
            "raise_exception": _raise_exception,
        }
        try:
            return self._bounded(known)
        except jinja2.TemplateError as error:
            raise TemplateRefused(_text_of(error)) from error
        except (*_SCRIPT_FAULTS, RecursionError) as error:
            raise TemplateRefused(_UNRENDERABLE) from error

    def _bounded(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        template = self._template
        for piece in template.root_render_func(template.new_context(values, shared=True)):
            length += len(piece)
            if length > MAX_PROMPT_CHARS:
                raise TemplateRefused(f"The prompt exceeds {MAX_PROMPT_CHARS} characters.")
            pieces.append(piece)
        return "".join(pieces)


class _RefusedByTemplateError(jinja2.TemplateError):
    """The template itself said no."""


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is transparent."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the body of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object = "") -> NoReturn:
    raise _RefusedByTemplateError(str(message))


def _text_of(error: jinja2.TemplateError) -> str:
    if isinstance(error, _RefusedByTemplateError) and error.message:
        return error.message
    return _UNRENDERABLE


def _as_mapping(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.name is not None:
        message["name"] = turn.name
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    if turn.tool_calls:
        message["tool_calls"] = list(turn.tool_calls)
    if turn.reasoning_content is not None:
        message["reasoning_content"] = turn.reasoning_content
    return message
