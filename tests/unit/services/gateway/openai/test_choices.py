"""Several choices: one call each, side by side, merged into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from services.gateway.api import Call, Delta, Recover
from services.gateway.openai import CallRules
from tests.unit.services.gateway.rig import (
    Rig,
    ScriptedCalls,
    ScriptedLive,
    rules,
    then_hang,
    words,
)

LOST = PdbusError(ErrorCode.DECODE_LOST, "decode-1 is gone")


def number_of(rig: Rig, live: ScriptedLive) -> int:
    """Return which choice a call is, by the order of the calls."""
    return [call.rid for call in rig.calls.opened].index(live.call.rid)


def in_turns(rig: Rig, tokens: int = 3) -> Any:
    """Each choice says its own letter, one token a turn of the loop; the first ends last."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        number = number_of(rig, live)
        for _ in range(tokens - number):
            await asyncio.sleep(0)
            yield Delta(b"\0\0\0\0", "abcdef"[number])
        usage = Usage(prompt_tokens=live.call.prompt_tokens, completion_tokens=tokens - number)
        yield Delta(b"", "", FinishReason.LENGTH, usage)

    return script


async def test_each_choice_has_its_own_index(rig: Rig):
    """Whole: three choices in order, each with its own text; the prompt counts once."""
    rig.calls.script = in_turns(rig)
    body = (await rig.ask(n=3)).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["aaa", "bb", "c"]
    prompt = rig.calls.opened[0].prompt_tokens
    assert body["usage"]["prompt_tokens"] == prompt
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["total_tokens"] == prompt + 6


async def test_streams_are_told_apart(rig: Rig):
    """Streamed: per index one role, its own text, one finish and nothing after it."""
    rig.calls.script = in_turns(rig)
    *chunks, last, done = (
        await rig.ask(n=3, stream=True, stream_options={"include_usage": True})
    ).events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    for index, text in enumerate(("aaa", "bb", "c")):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert sum("role" in entry["delta"] for entry in mine) == 1
        assert "".join(entry["delta"].get("content", "") for entry in mine) == text
        assert [e["finish_reason"] for e in mine] == [None] * (len(mine) - 1) + ["length"]
    assert {c["choices"][0]["index"] for c in chunks} == {0, 1, 2}
    assert len({c["id"] for c in [*chunks, last]}) == 1


async def test_choices_are_requests_of_their_own(rig: Rig):
    """Own ids and seeds, one digest, and no second prefill of one alone."""
    rig.rules = rules(
        call=CallRules(request_timeout_s=9.0, default_max_tokens=8, recover=Recover.ANY)
    )
    await rig.ask(n=3, seed=2**63 - 1)
    await rig.ask(n=1, seed=5)
    first, second, third, alone = rig.calls.opened
    assert len({first.rid, second.rid, third.rid}) == 3
    assert first.digest == second.digest == third.digest
    assert [call.sampling.seed for call in (first, second, third)] == [
        2**63 - 1,
        -(2**63),
        -(2**63) + 1,
    ]
    assert {first.recover, second.recover, third.recover} == {Recover.NEVER}
    assert (alone.recover, alone.sampling.seed) == (Recover.ANY, 5)


async def test_choices_have_keys_that_no_client_can_send(rig: Rig):
    """The first choice has the client's key, each other one derived with a space in it."""
    await rig.ask(n=2, headers={"idempotency-key": "k"})
    assert [call.key for call in rig.calls.opened] == ["k", "k 1"]
    refused = await rig.ask(headers={"idempotency-key": "k 1"})
    assert refused.status == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_fails_ends_the_whole(rig: Rig, stream: bool):
    """An error of any choice is the error of the answer, and all others are given up."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        yield Delta(b"\0\0\0\0", "x")
        if number_of(rig, live) == 2:
            raise LOST
        live.hanging.set()
        await asyncio.Event().wait()

    rig.calls.script = script
    reply = await rig.ask(n=4, stream=stream)
    failure = reply.events[-1] if stream else reply.json
    assert failure["error"]["code"] == "decode_lost"
    assert b"[DONE]" not in reply.body
    cancels = [live.cancels for live in rig.calls.lives if number_of(rig, live) != 2]
    assert cancels == [["another choice of the request failed"]] * 3


async def test_a_refusal_of_the_first_is_plain_http(rig: Rig):
    """What cannot begin is an HTTP error, for several choices as for one."""
    rig.calls.refuse = PdbusError(ErrorCode.SATURATED, retry_after_s=1)
    reply = await rig.ask(n=3, stream=True)
    assert (reply.status, reply.error["code"]) == (429, "saturated")


async def test_only_some_run_at_a_time(rig: Rig):
    """Sixteen choices with four at a time: never five, and all of them come."""
    running, most = 0, 0

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        yield Delta(
            b"\0\0\0\0", "x", FinishReason.STOP, Usage(prompt_tokens=1, completion_tokens=1)
        )

    rig.calls.script = script
    rig.rules = rules(
        call=CallRules(request_timeout_s=9.0, default_max_tokens=8, choices_at_once=4)
    )
    assert len((await rig.ask(n=16)).json["choices"]) == 16
    assert most == 4


class FewSlots(ScriptedCalls):
    """Workers with two slots: a third call is refused until one of them has ended.

    All look for a place before any finds one, and for a while strangers hold every slot.
    """

    taken = 0
    refused = 0
    strangers = 0
    seen: tuple[Call, ...] | list[Call] = ()

    async def open(self, call: Call) -> ScriptedLive:
        self.seen = [*self.seen, call]
        await asyncio.sleep(0)
        if self.lives and self.strangers:
            self.strangers -= 1
            self.refused += 1
            raise PdbusError(ErrorCode.SATURATED)
        if self.taken == 2:
            self.refused += 1
            raise PdbusError(ErrorCode.SATURATED)
        self.taken += 1
        live = await super().open(call)
        script = live._script

        async def freeing(of: ScriptedLive) -> AsyncGenerator[Delta, None]:
            async for delta in script(of):
                await asyncio.sleep(0)
                if delta.finish is not None:
                    self.taken -= 1
                yield delta

        live._script = freeing
        return live


async def test_a_choice_waits_for_a_slot_of_its_siblings(rig: Rig):
    """More choices than slots: those that find none come when others have ended."""
    for strangers in (0, 5):
        rig.calls = FewSlots(script=words("x", "y"))
        rig.calls.strangers = strangers
        body = (await rig.ask(n=5)).json
        assert [choice["message"]["content"] for choice in body["choices"]] == ["xy"] * 5
        assert rig.calls.refused
        assert len({call.rid for call in rig.calls.opened}) == 5


async def test_another_try_is_another_request(rig: Rig):
    """What was refused is over: the next try has an id and a key of its own, the same each time."""
    tried: list[list[str | None]] = []
    for _ in range(2):
        rig.calls = FewSlots(script=words("x"))
        await rig.ask(n=3, headers={"idempotency-key": "k"})
        tried.append([call.key for call in rig.calls.seen])
        assert len({call.rid for call in rig.calls.seen}) == len(rig.calls.seen)
    assert tried[0] == tried[1] == ["k", "k 1", "k 2", "k 2 /1"]


async def test_a_request_that_finds_no_slot_at_all_is_refused(rig: Rig):
    """Where none of its choices finds a place, the request is told so, and ends."""
    rig.calls = FewSlots()
    rig.calls.taken = 2
    reply = await rig.ask(n=5)
    assert (reply.status, reply.error["code"]) == (429, "saturated")
    assert rig.calls.refused >= 5


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_all(rig: Rig, stream: bool):
    """Every choice of a client that has left is given up, and says why."""
    rig.calls.script = then_hang("x")
    visit = rig.post(n=3, stream=stream)
    running = asyncio.ensure_future(visit.run())
    while len(rig.calls.lives) < 3:
        await asyncio.sleep(0)
    for live in rig.calls.lives:
        await live.hanging.wait()
    visit.leave()
    await running
    assert [live.cancels for live in rig.calls.lives] == [["client_gone"]] * 3


async def test_complete_choices_are_not_cancelled(rig: Rig):
    """The end of an answer gives up nothing."""
    await rig.ask(n=3)
    assert [live.cancels for live in rig.calls.lives] == [[], [], []]
