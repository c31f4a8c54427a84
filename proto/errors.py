"""The closed table of everything that can go wrong, as users, operators and services see it.

One row a code: HTTP status, OpenAI error type, whether a client may try again, and the text that
the public reads. Details (`PdbusError.detail`) are for logs and events, never for clients, except
for the codes that describe the client's own request (`ErrorSpec.detail_is_public`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proto.base import Message

__all__ = [
    "ERRORS",
    "Cleaner",
    "ErrorCode",
    "ErrorReply",
    "ErrorSpec",
    "PdbusError",
    "Stage",
    "spec_of",
]


class ErrorCode(StrEnum):
    """Why a request was refused or failed."""

    INVALID_REQUEST = "invalid_request"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REQUEST_TOO_LARGE = "request_too_large"
    BODY_TIMEOUT = "body_timeout"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    RESULT_EXPIRED = "result_expired"
    ALREADY_CANCELLED = "already_cancelled"
    SATURATED = "saturated"
    NO_WORKER = "no_worker"
    NO_ROUTER = "no_router"
    VERSION_MISMATCH = "version_mismatch"
    LANE_REFUSED = "lane_refused"
    DRAINING = "draining"
    STARTING = "starting"
    BUS_UNAVAILABLE = "bus_unavailable"
    BUS_LOST = "bus_lost"
    PREFILL_LOST = "prefill_lost"
    DECODE_LOST = "decode_lost"
    GATEWAY_LOST = "gateway_lost"
    KV_TRANSFER_FAILED = "kv_transfer_failed"
    STREAM_GAP = "stream_gap"
    DEADLINE = "deadline"
    SLOW_CLIENT = "slow_client"
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"
    STALE_ATTEMPT = "stale_attempt"
    UNKNOWN_REQUEST = "unknown_request"
    INTERNAL = "internal_error"


class Stage(StrEnum):
    """Where in a request's life a failure appears."""

    EDGE = "edge"
    """Before anything was published."""
    ACCEPT = "accept"
    PLACE = "place"
    START = "start"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    STREAM = "stream"


class Cleaner(StrEnum):
    """Who sees to it that a failed request leaves nothing behind."""

    NOBODY = "nobody"
    """Nothing was taken."""
    GATEWAY = "gateway"
    """It aborts both sides by name; cleanup repeats that until the leases are proved free."""
    WORKER = "worker"
    CLEANUP = "cleanup"
    """Nobody else is left who could."""


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table."""

    code: ErrorCode
    http: int
    kind: str
    """OpenAI's `error.type`."""
    stage: Stage
    """Where in a request's life it usually appears."""
    cleaner: Cleaner
    """Who sees to it that nothing is left behind."""
    retryable: bool
    """Whether the same request may succeed if a client sends it again."""
    attempt_retryable: bool
    """Whether the gateway itself may start one new attempt before the first token."""
    text: str
    detail_is_public: bool = False


def _row(  # noqa: PLR0913 - one argument a column
    code: ErrorCode,
    http: int,
    kind: str,
    stage: Stage,
    cleaner: Cleaner,
    text: str,
    *,
    retry: bool = False,
    attempt: bool = False,
    public: bool = False,
) -> ErrorSpec:
    return ErrorSpec(
        code=code,
        http=http,
        kind=kind,
        stage=stage,
        cleaner=cleaner,
        retryable=retry,
        attempt_retryable=attempt,
        text=text,
        detail_is_public=public,
    )


_BAD = "invalid_request_error"
_CONFLICT = "conflict_error"
_LIMIT = "rate_limit_error"
_SERVER = "server_error"
_C = ErrorCode
_S = Stage
_B = Cleaner

ERRORS: dict[ErrorCode, ErrorSpec] = {
    row.code: row
    for row in (
        _row(
            _C.INVALID_REQUEST,
            400,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "The request body is not valid.",
            public=True,
        ),
        _row(
            _C.INVALID_VALUE,
            400,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "A field has a value that is not allowed.",
            public=True,
        ),
        _row(
            _C.UNSUPPORTED_PARAMETER,
            400,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "A field is not supported.",
            public=True,
        ),
        _row(
            _C.CONTEXT_LENGTH_EXCEEDED,
            400,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "The prompt is too long.",
            public=True,
        ),
        _row(
            _C.MODEL_NOT_FOUND,
            404,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "The model does not exist.",
            public=True,
        ),
        _row(_C.NOT_FOUND, 404, _BAD, _S.EDGE, _B.NOBODY, "There is no such route.", public=True),
        _row(
            _C.METHOD_NOT_ALLOWED,
            405,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "The route has no such method.",
            public=True,
        ),
        _row(
            _C.UNSUPPORTED_MEDIA_TYPE,
            415,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "Send application/json.",
            public=True,
        ),
        _row(
            _C.REQUEST_TOO_LARGE,
            413,
            _BAD,
            _S.EDGE,
            _B.NOBODY,
            "The request is too large.",
            public=True,
        ),
        _row(
            _C.BODY_TIMEOUT,
            408,
            "timeout",
            _S.EDGE,
            _B.NOBODY,
            "The body came too slowly.",
            retry=True,
            public=True,
        ),
        _row(
            _C.IDEMPOTENCY_KEY_REUSED,
            422,
            _BAD,
            _S.ACCEPT,
            _B.NOBODY,
            "This key was used with another body.",
        ),
        _row(
            _C.RESULT_EXPIRED,
            409,
            _CONFLICT,
            _S.ACCEPT,
            _B.NOBODY,
            "The request is done; its answer is kept no more.",
        ),
        _row(
            _C.ALREADY_CANCELLED,
            409,
            _CONFLICT,
            _S.ACCEPT,
            _B.NOBODY,
            "The request with this key was cancelled.",
        ),
        _row(
            _C.SATURATED,
            429,
            _LIMIT,
            _S.PLACE,
            _B.NOBODY,
            "All decode slots are taken; try again.",
            retry=True,
        ),
        _row(
            _C.NO_WORKER,
            503,
            _SERVER,
            _S.PLACE,
            _B.NOBODY,
            "No worker can serve this model now.",
            retry=True,
        ),
        _row(_C.NO_ROUTER, 503, _SERVER, _S.PLACE, _B.NOBODY, "No router answers now.", retry=True),
        _row(
            _C.VERSION_MISMATCH,
            503,
            _SERVER,
            _S.PLACE,
            _B.NOBODY,
            "The workers are not compatible.",
            retry=True,
        ),
        _row(
            _C.LANE_REFUSED,
            503,
            _SERVER,
            _S.PLACE,
            _B.NOBODY,
            "No pair has the required transport.",
            retry=True,
        ),
        _row(
            _C.DRAINING,
            503,
            _SERVER,
            _S.START,
            _B.GATEWAY,
            "The service is shutting down.",
            retry=True,
            attempt=True,
        ),
        _row(_C.STARTING, 503, _SERVER, _S.EDGE, _B.NOBODY, "The service is starting.", retry=True),
        _row(
            _C.BUS_UNAVAILABLE,
            503,
            _SERVER,
            _S.ACCEPT,
            _B.NOBODY,
            "The message bus is not reachable.",
            retry=True,
        ),
        _row(
            _C.BUS_LOST,
            503,
            _SERVER,
            _S.STREAM,
            _B.CLEANUP,
            "The message bus was lost.",
            retry=True,
        ),
        _row(
            _C.PREFILL_LOST,
            502,
            _SERVER,
            _S.PREFILL,
            _B.GATEWAY,
            "The prefill was lost.",
            retry=True,
            attempt=True,
        ),
        _row(
            _C.DECODE_LOST,
            502,
            _SERVER,
            _S.STREAM,
            _B.GATEWAY,
            "The decode was lost.",
            retry=True,
            attempt=True,
        ),
        _row(
            _C.GATEWAY_LOST,
            502,
            _SERVER,
            _S.STREAM,
            _B.CLEANUP,
            "The gateway was lost.",
            retry=True,
        ),
        _row(
            _C.KV_TRANSFER_FAILED,
            502,
            _SERVER,
            _S.TRANSFER,
            _B.GATEWAY,
            "The KV transfer failed.",
            retry=True,
            attempt=True,
        ),
        _row(
            _C.STREAM_GAP,
            502,
            _SERVER,
            _S.STREAM,
            _B.GATEWAY,
            "A part of the answer was lost.",
            retry=True,
        ),
        _row(
            _C.DEADLINE,
            504,
            "timeout",
            _S.STREAM,
            _B.GATEWAY,
            "The request's deadline passed.",
            retry=True,
        ),
        _row(_C.SLOW_CLIENT, 499, _BAD, _S.STREAM, _B.GATEWAY, "The client read too slowly."),
        _row(
            _C.ENGINE_ERROR,
            500,
            _SERVER,
            _S.PREFILL,
            _B.GATEWAY,
            "The engine failed on this request.",
        ),
        _row(_C.CANCELLED, 499, _BAD, _S.STREAM, _B.GATEWAY, "The request was cancelled."),
        _row(
            _C.STALE_ATTEMPT,
            409,
            _BAD,
            _S.START,
            _B.WORKER,
            "A newer attempt of the request exists.",
        ),
        _row(_C.UNKNOWN_REQUEST, 404, _BAD, _S.PLACE, _B.NOBODY, "There is no such request."),
        _row(_C.INTERNAL, 500, _SERVER, _S.STREAM, _B.GATEWAY, "Internal error."),
    )
}


def spec_of(code: ErrorCode) -> ErrorSpec:
    """Return the row of a code."""
    return ERRORS[code]


class PdbusError(Exception):
    """A failure with a code from the table; the only exception that services raise on purpose.

    Args:
        code: the row of the table.
        detail: what happened, for logs and events (public only where the row says so).
        param: the field of the client's request at fault.
        retry_after_s: when to try again, where that is known.
    """

    def __init__(
        self,
        code: ErrorCode,
        detail: str = "",
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}" if detail else str(code))
        self.code = code
        self.detail = detail
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def spec(self) -> ErrorSpec:
        """The row of the table."""
        return ERRORS[self.code]

    @property
    def public_text(self) -> str:
        """What a client may read."""
        return self.detail if self.spec.detail_is_public and self.detail else self.spec.text


class ErrorReply(Message, frozen=True, kw_only=True):
    """The body of a failed reply on the bus."""

    code: ErrorCode
    detail: str = ""
    param: str | None = None
    retry_after_s: float | None = None
