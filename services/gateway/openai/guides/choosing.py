"""Which guide a request asks for, if any."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from proto.openai.drawing import ResponseFormat
from proto.sampling import Guide, GuideKind
from services.gateway.openai.bodies import invalid
from services.gateway.openai.guides.enforceable import enforceable
from services.gateway.openai.guides.patterns import fault_of
from services.gateway.openai.guides.schemas import check_schema

__all__ = ["Guided", "guide_of", "schema_guide"]

_MAX_EBNF_CHARS = 65_536
_ROOT_RULE = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Guided(Protocol):
    """A request, as far as it says what its answers must match; None means "not given"."""

    @property
    def regex(self) -> str | None:
        """A regular expression for the whole answer."""
        ...

    @property
    def ebnf(self) -> str | None:
        """A grammar with the rule `root`."""
        ...

    @property
    def json_schema(self) -> str | dict[str, Any] | None:
        """A schema, as JSON or as text."""
        ...


def guide_of(
    request: Guided, response_format: ResponseFormat | None = None
) -> tuple[str, Guide] | None:
    """Return the field that asks for a guide, and the guide.

    Raises:
        PdbusError: the guide is not valid, cannot be enforced, or there are several.
    """
    found = list(_asked(request, response_format))
    if len(found) > 1:
        raise invalid(found[1][0], f"it cannot be given beside '{found[0][0]}'.")
    return found[0] if found else None


def _asked(request: Guided, answer: ResponseFormat | None) -> Iterator[tuple[str, Guide]]:
    if answer is not None and answer.type != "text":
        yield "response_format", schema_guide(_format_schema(answer), "response_format")
    if request.json_schema is not None:
        yield "json_schema", schema_guide(_parsed(request.json_schema), "json_schema")
    if request.regex is not None:
        fault = fault_of(request.regex) if request.regex else "it is empty"
        if fault is not None:
            raise invalid("regex", f"{fault}.")
        yield "regex", Guide(kind=GuideKind.REGEX, text=request.regex)
    if request.ebnf is not None:
        if len(request.ebnf) > _MAX_EBNF_CHARS or not _ROOT_RULE.search(request.ebnf):
            raise invalid(
                "ebnf",
                f"a grammar of up to {_MAX_EBNF_CHARS} characters with `root ::=` is expected.",
            )
        yield "ebnf", Guide(kind=GuideKind.EBNF, text=request.ebnf)


def _format_schema(answer: ResponseFormat) -> dict[str, Any]:
    given = answer.json_schema
    if (given is not None) is not (answer.type == "json_schema"):
        raise invalid("response_format", "'json_schema' goes with the type 'json_schema'.")
    return _ANY_OBJECT if given is None or given.schema is None else given.schema


def _parsed(schema: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(
            "json_schema", "a JSON schema is expected, as an object or as text."
        ) from error


def schema_guide(schema: dict[str, Any], param: str) -> Guide:
    """Return the guide of a schema.

    Raises:
        PdbusError: it is not valid, or cannot be enforced; `param` is the field it comes from.
    """
    check_schema(schema, param=param)
    made = enforceable(schema, param=param)
    return Guide(kind=GuideKind.JSON_SCHEMA, text=msgspec.json.encode(made).decode())
