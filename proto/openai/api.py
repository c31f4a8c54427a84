"""The two kinds of public value: what is read strictly, and what is written plainly."""

from __future__ import annotations

import msgspec

__all__ = ["Answer", "Body"]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a request. Unknown fields are an error, so that nothing is ignored in silence."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer. A field that is `msgspec.UNSET` is left out; None is written as null."""
