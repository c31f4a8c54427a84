"""Variables of a template that a request sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libs.text import ModelText
from services.gateway.openai.bodies import invalid

__all__ = ["template_values"]

_EFFORT = "reasoning_effort"


def template_values(
    text: ModelText, given: Mapping[str, Any] | None, effort: str | None
) -> dict[str, Any]:
    """Return the variables for a model's template.

    Args:
        given: the client's `chat_template_kwargs`.
        effort: its `reasoning_effort`, which means something only to templates that ask for it.

    Raises:
        PdbusError: a variable is not for clients to set.
    """
    values = dict(given or {})
    for name in values:
        if text.template.reserved(name):
            raise invalid("chat_template_kwargs", f"'{name[:64]}' cannot be set.")
    if effort is not None and _EFFORT in text.template.variables:
        values.setdefault(_EFFORT, effort)
    return values
