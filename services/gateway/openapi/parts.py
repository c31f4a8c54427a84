"""Parts of the document that are written once: headers, errors, probes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from proto.errors import ERRORS, ErrorCode

__all__ = ["HEADERS", "PROBES", "SECURITY", "error_responses", "reference"]

Json = dict[str, Any]

_WAITING = frozenset({429, 503})


def reference(name: str) -> Json:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def error_responses(codes: Collection[ErrorCode]) -> Json:
    """Return the responses of some errors by HTTP status, each with its codes and their texts."""
    rows: defaultdict[int, list[str]] = defaultdict(list)
    for code, row in ERRORS.items():
        if code in codes:
            rows[row.http].append(f"`{code}`: {row.text}")
    return {str(status): _error(status, rows[status]) for status in sorted(rows)}


def _error(status: int, lines: list[str]) -> Json:
    wait: Json = {
        "retry-after": {"description": "Seconds to wait.", "schema": {"type": "string"}},
        "retry-after-ms": {"description": "As milliseconds.", "schema": {"type": "string"}},
    }
    return {
        "description": f"{HTTPStatus(status).phrase}. " + " ".join(lines),
        "headers": {"x-request-id": _ID, **(wait if status in _WAITING else {})},
        "content": {"application/json": {"schema": reference("ErrorBody")}},
    }


_ID: Json = {"description": "The request's id, or the caller's.", "schema": {"type": "string"}}

HEADERS: Json = {
    "RequestId": {
        "name": "x-request-id",
        "in": "header",
        "description": "Comes back; up to 128 printable ASCII characters, else it is replaced.",
        "schema": {"type": "string"},
    },
    "Mode": {
        "name": "x-pdbus-mode",
        "in": "header",
        "description": "Whether prefill and decode are two workers or one.",
        "schema": {"type": "string", "enum": ["auto", "disaggregated", "aggregated"]},
    },
    "IdempotencyKey": {
        "name": "idempotency-key",
        "in": "header",
        "description": "The request that this one is: sent again, it gets the same answer.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    },
}
"""Parameters that several operations have."""

SECURITY: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key; not needed where the gateway runs without keys.",
    }
}

_STATE: Json = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
}
_VERSION: Json = {
    "type": "object",
    "required": ["version", "protocol", "instance"],
    "properties": {
        "version": {"type": "string"},
        "protocol": {"type": "integer"},
        "instance": {"type": "string"},
    },
}


def _probe(name: str, summary: str, kind: str, schema: Json, *, unready: bool = False) -> Json:
    content = {kind: {"schema": schema}}
    answers: Json = {"200": {"description": "As it is.", "content": content}}
    if unready:
        answers["503"] = {"description": "Not now, and why.", "content": content}
    return {"get": {"operationId": name, "summary": summary, "responses": answers, "security": []}}


_JSON = "application/json"
_TEXT: Json = {"type": "string"}

PROBES: Json = {
    "/livez": _probe("live", "Whether the process lives.", _JSON, _STATE),
    "/readyz": _probe("ready", "Whether requests can be served.", _JSON, _STATE, unready=True),
    "/health": _probe("health", "The same as /readyz.", _JSON, _STATE, unready=True),
    "/version": _probe("version", "What runs here.", _JSON, _VERSION),
    "/metrics": _probe("metrics", "Metrics in Prometheus' text format.", "text/plain", _TEXT),
    "/openapi.json": _probe("openapi", "This document.", _JSON, {"type": "object"}),
}
"""Paths that need no key."""
