"""What an answer must look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from proto.openai.api import Body

__all__ = ["JsonSchemaFormat", "ResponseFormat"]


class JsonSchemaFormat(Body, frozen=True, kw_only=True):
    """A schema with a name."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=65_536)] | None = None
    schema: dict[str, Any] | None = None
    """None for any object."""
    strict: bool | None = None
    """No effect: answers always match."""


class ResponseFormat(Body, frozen=True, kw_only=True):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    """Exactly with the type `json_schema`."""
