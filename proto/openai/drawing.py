"""Fields that say how an answer is drawn and what it must match; endpoints share them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from proto.openai.api import Body

__all__ = [
    "MAX_CHOICES",
    "MAX_STOPS",
    "Bias",
    "Chance",
    "Count",
    "JsonSchemaFormat",
    "Limit",
    "MinP",
    "Penalty",
    "Priority",
    "Repetition",
    "ResponseFormat",
    "Salt",
    "Seed",
    "Stop",
    "StopIds",
    "StreamOptions",
    "Temperature",
    "TokenId",
    "TopK",
    "TopP",
]

MAX_CHOICES = 128
MAX_STOPS = 4

Chance = Annotated[float, Meta(ge=0.0, le=1.0)]
MinP = Chance
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1, lt=2**31)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Repetition = Annotated[float, Meta(gt=0.0, le=2.0)]
Limit = Annotated[int, Meta(ge=1, lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
StopIds = Annotated[list[TokenId], Meta(max_length=64)]
Bias = Annotated[dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]], Meta(max_length=1024)]
"""Token ids as text, as JSON has it."""
Priority = Annotated[int, Meta(ge=-10, le=0)]
Salt = Annotated[str, Meta(min_length=1, max_length=256)]

_StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = _StopText | Annotated[list[_StopText], Meta(max_length=MAX_STOPS)]


class StreamOptions(Body, frozen=True, kw_only=True):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """No effect: events are never padded."""


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
