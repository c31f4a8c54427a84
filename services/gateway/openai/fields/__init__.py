"""One table of request fields an endpoint."""

from services.gateway.openai.fields.chat import CHAT_FIELDS
from services.gateway.openai.fields.common import INTERNAL, LABEL, LABELS, done, no_effect, refused
from services.gateway.openai.fields.completions import COMPLETION_FIELDS
from services.gateway.openai.fields.table import Field, FieldTable, Stance
from services.gateway.openai.fields.unknown import UnknownField, without

__all__ = [
    "CHAT_FIELDS",
    "COMPLETION_FIELDS",
    "INTERNAL",
    "LABEL",
    "LABELS",
    "Field",
    "FieldTable",
    "Stance",
    "UnknownField",
    "done",
    "no_effect",
    "refused",
    "without",
]
