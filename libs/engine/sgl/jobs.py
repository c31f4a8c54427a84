"""Jobs in SGLang's words, and SGLang's answers in ours."""

from __future__ import annotations

import array
import sys
from typing import Any

from libs.sglang_plugins import encode_address
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobKind
from proto.kv import PeerAddress
from proto.sampling import SamplingParams

__all__ = ["NO_PEER", "finish_of", "pack_ids", "request_of", "sampling_of", "unpack_ids"]

NO_PEER = "prefill"
"""SGLang wants a peer's address on the prefill side too, and does not use it."""

_BAD_REQUEST = 400


def request_of(job: Job) -> dict[str, Any]:
    """Return the fields of SGLang's request for a job."""
    fields: dict[str, Any] = {
        "rid": job.job,
        "input_ids": unpack_ids(job.input_ids),
        "sampling_params": sampling_of(job.sampling),
        "stream": True,
    }
    if job.kind != JobKind.AGGREGATED:
        fields["bootstrap_host"] = _peer(job.source)
        fields["bootstrap_port"] = 1
        fields["bootstrap_room"] = int(job.room)
    if job.traceparent is not None:
        fields["external_trace_header"] = {
            "traceparent": job.traceparent,
            "tracestate": job.tracestate or "",
        }
    return fields


def sampling_of(sampling: SamplingParams) -> dict[str, Any]:
    """Return SGLang's sampling parameters."""
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }


def finish_of(reason: dict[str, Any]) -> FinishReason | tuple[ErrorCode, str]:
    """Return how a job finished, or the code and text of its failure."""
    kind = reason.get("type")
    if kind == "stop":
        return FinishReason.STOP
    if kind == "length":
        return FinishReason.LENGTH
    text = str(reason.get("message", kind))
    if reason.get("status_code") == _BAD_REQUEST:
        return ErrorCode.INVALID_VALUE, text
    if reason.get("status_code") is None:
        return ErrorCode.CANCELLED, text
    return ErrorCode.ENGINE_ERROR, text


def unpack_ids(data: bytes) -> list[int]:
    """Return token ids from little-endian uint32."""
    ids = array.array("I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def pack_ids(ids: list[int]) -> bytes:
    """Return token ids as little-endian uint32."""
    packed = array.array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _peer(source: PeerAddress | None) -> str:
    return NO_PEER if source is None else encode_address(source)
