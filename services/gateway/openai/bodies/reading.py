"""Reads the body of a request, or says which field is at fault."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from proto.errors import ErrorCode, PdbusError
from services.gateway.openai.bodies.faults import refuse, refuse_broken
from services.gateway.openai.fields import FieldTable, Stance

__all__ = ["BodyReader"]

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

_TOO_DEEP = "The body is nested too deeply."

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BodyReader(Generic[RequestT]):
    """Reads the bodies of one endpoint.

    Args:
        kind: the type of a request: its fields are those that are carried out.
        table: what becomes of all fields.
    """

    def __init__(self, kind: type[RequestT], table: FieldTable) -> None:
        self._request = msgspec.json.Decoder(kind)
        self._table = table
        self._done = table.names(Stance.DONE)

    def read(self, body: bytes) -> RequestT:
        """Return the request in a body.

        Raises:
            PdbusError: not JSON, unknown or unsupported fields, wrong types or values.
        """
        try:
            fields = _fields.decode(body)
            self._table.check(fields)
            return self._request.decode(self._carried_out(fields, body))
        except RecursionError as error:
            raise PdbusError(ErrorCode.INVALID_REQUEST, _TOO_DEEP) from error
        except msgspec.ValidationError as error:
            refuse(str(error), body)
        except msgspec.DecodeError as error:
            refuse_broken(str(error), body)

    def _carried_out(self, fields: dict[str, msgspec.Raw], body: bytes) -> bytes:
        """Return the body without the fields that were accepted to have no effect."""
        done = {name: raw for name, raw in fields.items() if name in self._done}
        return body if len(done) == len(fields) else msgspec.json.encode(done)
