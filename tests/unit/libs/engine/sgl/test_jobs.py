from __future__ import annotations

import array

import pytest

from libs.engine.sgl.jobs import NO_PEER, finish_of, pack_ids, request_of, sampling_of, unpack_ids
from libs.sglang_plugins import decode_address
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobKind
from proto.ids import JobId, Room
from proto.kv import PeerAddress
from proto.sampling import SamplingParams

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
    )
    ours = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    ours["max_new_tokens"] = ours.pop("max_tokens")
    ours |= {"stop": ["a", "b"], "stop_token_ids": [1]}
    assert sampling_of(sampling) == ours


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
