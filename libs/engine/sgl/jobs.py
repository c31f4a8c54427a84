"""Jobs in SGLang's words, and SGLang's answers in ours."""

from __future__ import annotations

import array
import sys
from itertools import zip_longest
from typing import Any

from libs.sglang_plugins import encode_address
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobKind
from proto.output import TokenLogprob
from proto.sampling import SamplingParams

__all__ = [
    "NO_PEER",
    "finish_of",
    "logprobs_of",
    "pack_ids",
    "request_of",
    "sampling_of",
    "unpack_ids",
]

NO_PEER = "prefill"
"""SGLang wants a peer's address on the prefill side too; there it names who will ask, if known."""

_BAD_REQUEST = 400
_DEAD_END = "Grammar accept_token failed"
_LEAST_LOGPROB = -9999.0


def request_of(job: Job, *, marks: bool = False) -> dict[str, Any]:
    """Return the fields of SGLang's request for a job.

    Args:
        job: what to compute.
        marks: special tokens stay in the text, because a parser looks for them.
    """
    sampling = sampling_of(job.sampling)
    if marks:
        sampling["skip_special_tokens"] = False
    fields: dict[str, Any] = {
        "rid": job.job,
        "input_ids": unpack_ids(job.input_ids),
        "sampling_params": sampling,
        "stream": True,
    }
    if job.cache_salt:
        fields["cache_salt"] = job.cache_salt
    if job.sampling.logprobs is not None:
        # Prefill too: it samples the first token, whose entry travels with the KV.
        fields["return_logprob"] = True
        fields["top_logprobs_num"] = job.sampling.logprobs
    if job.kind != JobKind.AGGREGATED:
        fields["bootstrap_host"] = _peer(job)
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
    guide = sampling.guide
    wanted: dict[str, Any] = {} if guide is None else {str(guide.kind): guide.text}
    if sampling.logit_bias:
        wanted["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.seed is not None:
        wanted["sampling_seed"] = sampling.seed
    return wanted | {
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
        "min_new_tokens": sampling.min_tokens,
        "skip_special_tokens": sampling.skip_special_tokens,
    }


def logprobs_of(meta: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities that came with one item of SGLang, one entry a token."""
    own: list[tuple[float, int, None]] = meta.get("output_token_logprobs") or []
    tops: list[list[tuple[float, int, None]] | None] = meta.get("output_top_logprobs") or []
    return tuple(
        TokenLogprob(
            token=token,
            logprob=_finite(value),
            top=tuple((other, _finite(its)) for its, other, _ in top or ()),
        )
        for (value, token, _), top in zip_longest(own, tops)
    )


def finish_of(reason: dict[str, Any]) -> FinishReason | tuple[ErrorCode, str]:
    """Return how a job finished, or the code and text of its failure."""
    kind = reason.get("type")
    if kind == "stop":
        return FinishReason.STOP
    if kind == "length":
        return FinishReason.LENGTH
    text = str(reason.get("message", kind))
    if text.startswith(_DEAD_END):
        return ErrorCode.INVALID_VALUE, "the answer came to where the guide allows no token"
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


def _finite(value: float) -> float:
    """Return a log-probability that JSON can carry: a banned token has minus infinity."""
    return max(value, _LEAST_LOGPROB)


def _peer(job: Job) -> str:
    return (job.asker or NO_PEER) if job.source is None else encode_address(job.source)
