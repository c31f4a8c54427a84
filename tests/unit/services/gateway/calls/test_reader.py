"""Readers of one answer: each from its first token, none waiting for another."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from proto.errors import ErrorCode, PdbusError
from services.gateway.api import Delta
from services.gateway.calls.answer import AnswerLog
from services.gateway.calls.reader import Reader, Subject


class Request:
    """A request that is read."""

    def __init__(self) -> None:
        self.log = AnswerLog()
        self.left: list[str] = []

    async def leave(self, reader: Reader, reason: str) -> None:
        self.left.append(reason)


def delta(text: str) -> Delta:
    return Delta(b"\0\0\0\0", text)


async def read(reader: Reader) -> list[str]:
    return [part.text async for part in reader.deltas()]


def reader_of(request: Request) -> Reader:
    return Reader(cast(Subject, cast(Any, request)))


async def test_readers_get_all_whenever_they_come():
    """Early, late and after the end: the same answer from its first token."""
    request = Request()
    early = asyncio.ensure_future(read(reader_of(request)))
    await asyncio.sleep(0)
    request.log.add(delta("a"))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(read(reader_of(request)))
    request.log.add(delta("b"))
    request.log.end(None)
    request.log.add(delta("after the end"))
    assert await early == await late == await read(reader_of(request)) == ["a", "b"]


async def test_a_failure_comes_after_what_was_said():
    """A reader sees every token before it hears of the failure; the first end stands."""
    request = Request()
    request.log.add(delta("a"))
    request.log.end(PdbusError(ErrorCode.DECODE_LOST))
    request.log.end(None)
    parts = reader_of(request).deltas()
    assert (await anext(parts)).text == "a"
    with pytest.raises(PdbusError) as caught:
        await anext(parts)
    assert caught.value.code is ErrorCode.DECODE_LOST


async def test_pending_says_whether_there_is_more_now():
    """The writer gathers what is there, and does not wait for what is not."""
    request = Request()
    reader = reader_of(request)
    assert not reader.pending
    request.log.add(delta("a"))
    request.log.add(delta("b"))
    parts = reader.deltas()
    assert (await anext(parts)).text == "a"
    assert reader.pending
    assert (await anext(parts)).text == "b"
    assert not reader.pending
    request.log.end(None)
    assert reader.pending
    await parts.aclose()


async def test_a_reader_that_leaves_while_it_waits_leaves_nothing():
    """A cancelled wait is forgotten by the log, and told to the request once."""
    request = Request()
    reader = reader_of(request)
    waiting = asyncio.ensure_future(read(reader))
    await asyncio.sleep(0)
    assert len(request.log._waiting) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not request.log._waiting
    await reader.cancel("gone")
    await reader.cancel("gone again")
    assert request.left == ["gone"]


async def test_a_waiting_reader_is_offered_what_comes():
    """What the offer takes is not yielded; what it leaves is, and what comes behind it too."""
    request, offered = Request(), []

    def offer(part: Delta) -> bool:
        offered.append(part.text)
        return part.text != "b"

    async def all_of(reader: Reader) -> list[str]:
        return [part.text async for part in reader.deltas(offer)]

    request.log.add(delta("before"))
    reading = asyncio.ensure_future(all_of(reader_of(request)))
    await asyncio.sleep(0)
    for text in ("a", "b", "c"):
        request.log.add(delta(text))
    assert offered == ["a", "b"]
    await asyncio.sleep(0)
    request.log.add(delta("d"))
    request.log.end(None)
    assert await reading == ["before", "b", "c"]
    assert offered == ["a", "b", "d"]


async def test_offers_to_one_reader_take_nothing_from_another():
    """Each reader gets the whole answer, whether it takes what it is offered or not."""
    request, taken = Request(), []

    def offer(part: Delta) -> bool:
        taken.append(part.text)
        return True

    async def nothing_left(reader: Reader) -> list[str]:
        return [part.text async for part in reader.deltas(offer)]

    taking = asyncio.ensure_future(nothing_left(reader_of(request)))
    plain = asyncio.ensure_future(read(reader_of(request)))
    await asyncio.sleep(0)
    request.log.add(delta("a"))
    request.log.add(delta("b"))
    request.log.end(None)
    assert await taking == []
    assert taken == await plain == await read(reader_of(request)) == ["a", "b"]


async def test_a_reader_that_was_cancelled_is_offered_nothing():
    """Between its cancellation and its end a reader takes no more."""
    request, offered = Request(), []

    async def wait(reader: Reader) -> None:
        async for _ in reader.deltas(lambda part: bool(offered.append(part)) or True):
            pass

    waiting = asyncio.ensure_future(wait(reader_of(request)))
    await asyncio.sleep(0)
    waiting.cancel()
    request.log.add(delta("late"))
    await asyncio.wait([waiting])
    assert offered == []
    assert not request.log._waiting
