"""The queue between an engine and the reader of a job."""

import asyncio

import pytest

from libs.engine.api import EngineDead
from libs.engine.stream import OutputStream
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobFailed, JobFinished, JobTokens

TOKENS = [JobTokens(job="j", ids=bytes([n, 0, 0, 0])) for n in range(3)]
FINISHED = JobFinished(job="j", finish=FinishReason.STOP, prompt_tokens=1)


async def test_outputs_come_in_order_and_end_after_the_final_one():
    """The reader sees every output once, in order, and nothing after the final one."""
    stream = OutputStream()
    for output in (*TOKENS, FINISHED, TOKENS[0]):
        stream.push(output)
    assert [output async for output in stream] == [*TOKENS, FINISHED]
    assert [output async for output in stream] == []


async def test_a_waiting_reader_is_woken():
    """A reader that came first gets each output when it comes."""
    stream = OutputStream()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.push(TOKENS[0])
    assert await reader == TOKENS[0]


async def test_death_comes_after_what_was_said_before():
    """An error ends the stream once, behind the outputs that are queued."""
    stream = OutputStream()
    stream.push(TOKENS[0])
    stream.fail(EngineDead("gone"))
    stream.push(TOKENS[1])
    assert await anext(stream) == TOKENS[0]
    with pytest.raises(EngineDead, match="gone"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_closed_stream_collects_nothing():
    """After the reader has left, outputs are not kept."""
    stream = OutputStream()
    stream.push(TOKENS[0])
    await stream.aclose()
    stream.push(JobFailed(job="j", code=ErrorCode.CANCELLED))
    assert [output async for output in stream] == []


async def test_a_cancelled_reader_loses_nothing():
    """An output that comes after a cancelled read is there for the next one."""
    stream = OutputStream()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait({reader})
    stream.push(TOKENS[0])
    assert await anext(stream) == TOKENS[0]


def test_what_is_delivered_has_been_shaped():
    """The taker gets outputs as they are to be given, and none after the error."""

    class Shouting:
        def shape(self, output):
            return JobTokens(job=output.job, ids=output.ids, text="A")

    stream, taken, errors = OutputStream(Shouting()), [], []
    stream.deliver(taken.append, taken.append, errors.append)
    assert stream.direct is None
    stream.push(TOKENS[0])
    stream.fail(EngineDead("gone"))
    stream.push(TOKENS[1])
    assert [output.text for output in taken] == ["A"]
    assert [str(error) for error in errors] == ["gone"]


def plain(ids, text):
    raise AssertionError(ids, text)


def test_the_direct_way_is_open_while_nothing_else_is_asked():
    """It is what the taker is, from the delivery to the end, and never before or after."""
    stream, told = OutputStream(), []
    assert stream.direct is None
    take = told.append
    stream.deliver(take, told.append, plain=plain)
    assert stream.direct is take
    assert stream.plain is plain
    stream.push(FINISHED)
    assert stream.direct is None
    assert stream.plain is None
    dead = OutputStream()
    dead.deliver(take, told.append, plain=plain)
    dead.fail(EngineDead("gone"))
    assert dead.direct is None
    assert dead.plain is None
    over = OutputStream()
    over.push(FINISHED)
    over.deliver(take, told.append, plain=plain)
    assert over.direct is None
    assert over.plain is None


def test_all_is_delivered_where_it_comes():
    """With takers nobody has to iterate: what waited comes first, the final output is the last."""
    stream, told = OutputStream(), []
    stream.push(TOKENS[0])
    stream.deliver(told.append, told.append)
    for output in (TOKENS[1], FINISHED, TOKENS[2], FINISHED):
        stream.push(output)
    assert told == [*TOKENS[:2], FINISHED]


def test_a_refusal_that_waits_is_delivered():
    """A job that ended before anybody took its outputs has its end told, and nothing else."""
    stream, tokens, ends, errors = OutputStream(), [], [], []
    stream.push(JobFailed(job="j", code=ErrorCode.CANCELLED))
    stream.deliver(tokens.append, ends.append, errors.append)
    stream.push(TOKENS[0])
    stream.fail(EngineDead("gone"))
    assert (tokens, [end.code for end in ends], errors) == ([], [ErrorCode.CANCELLED], [])


@pytest.mark.parametrize("early", [True, False])
def test_death_is_delivered_once_behind_what_was_said(early):
    """An error comes after the tokens before it, whether it was there first or comes later."""
    stream, told = OutputStream(), []
    stream.push(TOKENS[0])
    if early:
        stream.fail(EngineDead("gone"))
    stream.deliver(told.append, told.append, told.append)
    stream.fail(EngineDead("again"))
    stream.push(TOKENS[1])
    assert told[0] == TOKENS[0]
    assert [str(error) for error in told[1:]] == ["gone" if early else "again"]
