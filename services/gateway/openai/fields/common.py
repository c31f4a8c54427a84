"""Rows that several endpoints share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from services.gateway.openai.fields.table import Field, Stance

__all__ = ["INTERNAL", "LABEL", "LABELS", "done", "no_effect", "refused"]

LABEL = Annotated[str, Meta(max_length=512)]
"""A text that names something for the client's own use."""
LABELS = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


def done(notes: dict[str, str]) -> tuple[Field, ...]:
    """Return rows of fields that are carried out, by name and note."""
    return tuple(Field(name, Stance.DONE, note) for name, note in notes.items())


def no_effect(name: str, note: str, *values: object, kind: Any = None) -> Field:
    """Return a row of a field that may have these values, or any of a type, without effect."""
    return Field(name, Stance.NO_EFFECT, note, values, kind)


def refused(*names: str) -> tuple[Field, ...]:
    """Return rows of fields that are known and refused."""
    return tuple(Field(name, Stance.REFUSED) for name in names)


INTERNAL: tuple[Field, ...] = tuple(
    Field(name, Stance.INTERNAL)
    for name in (
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "room", "rid", "attempt"),
        *("routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank", "session_params"),
        *("incarnation", "nonce", "input_ids", "external_trace_header"),
    )
)
"""What routes a request inside: refused from outside everywhere."""
