from __future__ import annotations

import array
from typing import Any

import pytest

from libs.engine.sgl.live import LiveJob
from libs.engine.stream import OutputStream
from proto.backend import RoomClosed
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import JobId, Room
from proto.kv import Lane, TransferReport
from proto.sampling import SamplingParams
from tests.support.records import card_of

CARD = card_of(dtype="float32", kv_dtype="float32", kv_layout="nhd")
ROW = 1600
REPORT = TransferReport(room=Room(7), lane=Lane.SYSV, expected_bytes=0, moved_bytes=9792)
LENGTH = {"type": "length", "length": 1}


def _live(kind: JobKind) -> LiveJob:
    job = Job(
        job=JobId("j" * 28),
        kind=kind,
        input_ids=array.array("I", range(5)).tobytes(),
        sampling=SamplingParams(max_tokens=4),
        room=Room(7),
    )
    return LiveJob(job, OutputStream(), CARD, row_bytes=ROW, arrived=10.0)


def _item(ids: list[int], text: str = "", reason: dict[str, Any] | None = None) -> dict[str, Any]:
    meta = {
        "finish_reason": reason,
        "prompt_tokens": 5,
        "cached_tokens": 2,
        "completion_tokens": len(ids),
    }
    return {"output_ids": ids, "text": text, "meta_info": meta}


async def _outputs(live: LiveJob) -> list[Any]:
    return [output async for output in live.stream]


async def test_tokens_come_in_order_and_the_end_last():
    """Each item's tokens are passed on, then one end."""
    live = _live(JobKind.AGGREGATED)
    assert not live.take(_item([1], "a"))
    assert live.take(_item([2], "b", {"type": "stop", "matched": 2}))
    first, second, end = await _outputs(live)
    assert (first.text, second.text) == ("a", "b")
    assert isinstance(end, JobFinished)
    assert (end.finish, end.prompt_tokens, end.cached_tokens) == (FinishReason.STOP, 5, 2)


async def test_prefill_gives_no_token():
    """What prefill sampled travels with the KV; only its end is told."""
    live = _live(JobKind.PREFILL)
    live.room_closed(RoomClosed(room=Room(7), report=REPORT, queue_s=0.1, forward_s=0.2), 11.0)
    assert live.take(_item([1], "a", LENGTH))
    (end,) = await _outputs(live)
    assert isinstance(end, JobFinished)
    assert (end.completion_tokens, end.queue_s, end.forward_s) == (0, 0.1, 0.2)


async def test_expected_bytes_come_from_the_shape_of_the_model():
    """The moved bytes are compared with whole pages of the card's KV and one metadata row."""
    live = _live(JobKind.DECODE)
    live.room_closed(RoomClosed(room=Room(7), report=REPORT), 12.5)
    live.take(_item([1], "a", LENGTH))
    end = (await _outputs(live))[-1]
    assert end.wait_kv_s == pytest.approx(2.5)
    assert end.transfer.expected_bytes == 16 * 2 * 2 * 2 * 16 * 4 + ROW
    assert (end.transfer.moved_bytes, end.transfer.tokens) == (9792, 5)


async def test_a_failed_transfer_is_the_reason_of_the_job():
    """SGLang's text is about its queue; the plane knows which peer was lost."""
    live = _live(JobKind.DECODE)
    closed = RoomClosed(room=Room(7), code=ErrorCode.PREFILL_LOST, detail="gone", report=REPORT)
    live.room_closed(closed, 11.0)
    assert live.take(
        _item([], "", {"type": "abort", "message": "transfer failed", "status_code": 500})
    )
    (end,) = await _outputs(live)
    assert isinstance(end, JobFailed)
    assert (end.code, end.detail) == (ErrorCode.PREFILL_LOST, "gone")
    assert end.transfer is not None


async def test_a_cancelled_job_is_cancelled_whatever_broke():
    """The abort that was asked for is the reason, not its consequences."""
    live = _live(JobKind.DECODE)
    live.cancelled = True
    live.room_closed(RoomClosed(room=Room(7), code=ErrorCode.KV_TRANSFER_FAILED), 11.0)
    live.take(_item([], "", {"type": "abort", "message": "x", "status_code": 500}))
    (end,) = await _outputs(live)
    assert end.code is ErrorCode.CANCELLED


async def test_an_abort_that_nobody_asked_for_is_an_error():
    """SGLang ended the job by itself: the client did not cancel it."""
    live = _live(JobKind.AGGREGATED)
    live.take(_item([5], "", {"type": "abort", "message": "Aborted"}))
    outputs = await _outputs(live)
    assert [type(output) for output in outputs] == [JobFailed]
    assert outputs[0].code is ErrorCode.ENGINE_ERROR


async def test_an_empty_item_gives_no_chunk():
    """An item without new tokens is not passed on."""
    live = _live(JobKind.AGGREGATED)
    assert not live.take(_item([]))
    live.take(_item([3], "c", LENGTH))
    assert [type(output) for output in await _outputs(live)] == [JobTokens, JobFinished]


async def test_kv_that_is_short_of_bytes_gives_no_answer():
    """What the model's shape demands counts: tokens made of less are dropped, the job fails."""
    live = _live(JobKind.DECODE)
    short = TransferReport(room=Room(7), lane=Lane.SYSV, expected_bytes=9000, moved_bytes=9000)
    assert not live.room_closed(RoomClosed(room=Room(7), report=short), 10.5)
    assert not live.take(_item([1], "a"))
    assert live.take(_item([2], "b", LENGTH))
    (failed,) = await _outputs(live)
    assert isinstance(failed, JobFailed)
    assert failed.code is ErrorCode.TRANSFER_CORRUPT
    assert failed.detail == "9000 bytes moved, 9792 expected"


@pytest.mark.parametrize(("held", "rest"), [(0, 16), (16, 0)])
async def test_a_prefix_that_decode_held_need_not_move(held: int, rest: int):
    """What decode's scheduler says that it holds is not expected, even if it holds all of it."""
    live = _live(JobKind.DECODE)
    moved = rest * 2 * 2 * 2 * 16 * 4 + ROW
    report = TransferReport(room=Room(7), lane=Lane.SYSV, expected_bytes=0, moved_bytes=moved)
    assert live.room_closed(RoomClosed(room=Room(7), report=report, held_tokens=held), 10.5)
    live.take(_item([1], "a", LENGTH))
    end = (await _outputs(live))[-1]
    assert (end.transfer.expected_bytes, end.transfer.held_tokens) == (moved, held)


def test_a_prefix_that_decode_did_not_hold_must_move():
    """Fewer pages than the rest of the prompt has are corrupt, whatever was asked for."""
    live = _live(JobKind.DECODE)
    row = TransferReport(
        room=Room(7), lane=Lane.SYSV, expected_bytes=ROW, moved_bytes=ROW, tokens=16
    )
    assert not live.room_closed(RoomClosed(room=Room(7), report=row), 10.5)
    assert live.corrupt == "1600 bytes moved, 9792 expected"
