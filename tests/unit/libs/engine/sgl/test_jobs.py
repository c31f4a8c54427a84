from __future__ import annotations

import array

import msgspec
import pytest

from libs.engine.sgl.jobs import (
    NO_PEER,
    finish_of,
    logprobs_of,
    pack_ids,
    request_of,
    sampling_of,
    unpack_ids,
)
from libs.sglang_plugins import decode_address
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobKind
from proto.ids import JobId, Room
from proto.kv import PeerAddress
from proto.output import TokenLogprob
from proto.sampling import Guide, GuideKind, SamplingParams

SOURCE = PeerAddress(incarnation="b" * 16, host="h", workers={"tcp": b"x"})


def _job(kind: JobKind, **more: object) -> Job:
    return Job(
        job=JobId("j" * 28),
        kind=kind,
        input_ids=array.array("I", [1, 2, 70000]).tobytes(),
        sampling=SamplingParams(max_tokens=5, temperature=0.0, stop=("x",), stop_token_ids=(9,)),
        room=Room(2**62 + 1),
        **more,
    )


def test_decode_is_told_where_to_fetch():
    """Room and address reach SGLang's backend unchanged."""
    fields = request_of(_job(JobKind.DECODE, source=SOURCE))
    assert fields["bootstrap_room"] == 2**62 + 1
    assert decode_address(fields["bootstrap_host"]) == SOURCE
    assert fields["input_ids"] == [1, 2, 70000]
    assert fields["rid"] == "j" * 28
    assert fields["stream"]


def test_prefill_needs_no_address_and_aggregated_no_room():
    """Only what a role uses is sent."""
    assert request_of(_job(JobKind.PREFILL))["bootstrap_host"] == NO_PEER
    assert not [key for key in request_of(_job(JobKind.AGGREGATED)) if "bootstrap" in key]


def test_the_trace_context_is_passed_on():
    """SGLang's spans join the request's trace."""
    fields = request_of(_job(JobKind.PREFILL, traceparent="00-a-b-01"))
    assert fields["external_trace_header"] == {"traceparent": "00-a-b-01", "tracestate": ""}
    assert "external_trace_header" not in request_of(_job(JobKind.PREFILL))


def test_every_sampling_field_is_passed_on():
    """No field of ours is dropped on the way to SGLang."""
    sampling = SamplingParams(
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        stop=("a", "b"),
        stop_token_ids=(1,),
        ignore_eos=True,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        min_tokens=2,
        logit_bias=((5, -100.0), (6, 1.5)),
        seed=42,
        guide=Guide(kind=GuideKind.JSON_SCHEMA, text='{"type": "object"}'),
        skip_special_tokens=False,
        logprobs=3,
    )
    ours = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    ours["max_new_tokens"] = ours.pop("max_tokens")
    ours["min_new_tokens"] = ours.pop("min_tokens")
    ours["sampling_seed"] = ours.pop("seed")
    ours |= {"json_schema": ours.pop("guide").text}
    ours |= {"stop": ["a", "b"], "stop_token_ids": [1]}
    ours["logit_bias"] = {"5": -100.0, "6": 1.5}
    assert ours.pop("logprobs") == 3  # a field of the request
    assert sampling_of(sampling) == ours


def test_what_is_not_asked_for_is_not_sent():
    """A request without seed, bias and guide does not name them to SGLang."""
    sent = sampling_of(SamplingParams(max_tokens=1))
    assert not {"sampling_seed", "logit_bias", "json_schema", "regex", "ebnf"} & set(sent)


@pytest.mark.parametrize("kind", list(JobKind))
def test_both_sides_compute_log_probabilities(kind: JobKind):
    """Prefill too: it samples the first token. Without the wish nothing is computed."""
    sampling = SamplingParams(max_tokens=5, logprobs=0)
    fields = request_of(msgspec.structs.replace(_job(kind), sampling=sampling))
    assert (fields["return_logprob"], fields["top_logprobs_num"]) == (True, 0)
    assert "return_logprob" not in request_of(_job(kind))


@pytest.mark.parametrize("kind", list(JobKind))
def test_a_salt_parts_the_prefix_caches(kind: JobKind):
    """The salt reaches the prefix cache of each side."""
    assert request_of(_job(kind, cache_salt="tenant"))["cache_salt"] == "tenant"
    assert "cache_salt" not in request_of(_job(kind))


def test_each_token_has_its_own_log_probabilities():
    """Of an item with several tokens each entry is its own; what was impossible stays finite."""
    meta = {
        "output_token_logprobs": [(-0.5, 7, None), (float("-inf"), 8, None)],
        "output_top_logprobs": [[(-0.5, 7, None), (-2.0, 9, None)], [(-0.1, 3, None)]],
    }
    first = TokenLogprob(token=7, logprob=-0.5, top=((7, -0.5), (9, -2.0)))
    second = TokenLogprob(token=8, logprob=-9999.0, top=((3, -0.1),))
    assert logprobs_of(meta) == (first, second)
    del meta["output_top_logprobs"]
    assert [entry.top for entry in logprobs_of(meta)] == [(), ()]
    assert logprobs_of({}) == ()


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ({"type": "stop", "matched": 2}, FinishReason.STOP),
        ({"type": "length", "length": 5}, FinishReason.LENGTH),
        ({"type": "abort", "message": "Aborted"}, (ErrorCode.CANCELLED, "Aborted")),
        (
            {"type": "abort", "message": "too long", "status_code": 400},
            (ErrorCode.INVALID_VALUE, "too long"),
        ),
        (
            {"type": "abort", "message": "failed", "status_code": 500},
            (ErrorCode.ENGINE_ERROR, "failed"),
        ),
    ],
)
def test_each_way_to_finish_has_its_meaning(reason: dict[str, object], ending: object):
    """SGLang's reasons become ours."""
    assert finish_of(reason) == ending


def test_ids_survive_packing():
    """Token ids come back as they were, little-endian."""
    assert unpack_ids(pack_ids([0, 1, 2**32 - 1])) == [0, 1, 2**32 - 1]
    assert pack_ids([1]) == b"\x01\x00\x00\x00"
