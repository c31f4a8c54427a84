"""The words of the error table: codes, stages, and who cleans up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cleaner", "ErrorCode", "ErrorSpec", "Stage"]


class ErrorCode(StrEnum):
    """Why a request was refused or failed."""

    INVALID_REQUEST = "invalid_request"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    HEADERS_TOO_LARGE = "headers_too_large"
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
    TRANSFER_CORRUPT = "transfer_corrupt"
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
