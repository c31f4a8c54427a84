"""Chunks of one answer come out in order, once, and complete, whatever the bus does."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason, TokenChunk
from services.gateway.attempts.assembler import Assembler


def chunk(offset: int, count: int, attempt: int = 0) -> TokenChunk:
    ids = struct.pack(f"<{count}I", *range(offset, offset + count))
    return TokenChunk(attempt=attempt, offset=offset, ids=ids, text=f"[{offset}]")


def end(total: int, attempt: int = 0) -> TokenChunk:
    return TokenChunk(attempt=attempt, offset=total, ids=b"", finish=FinishReason.STOP, total=total)


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [i for c in chunks for i in struct.unpack(f"<{c.count}I", c.ids)]


def answer(sizes: list[int]) -> list[TokenChunk]:
    chunks, offset = [], 0
    for size in sizes:
        chunks.append(chunk(offset, size))
        offset += size
    return [*chunks, end(offset)]


@given(
    sizes=st.lists(st.integers(1, 5), max_size=30),
    seed=st.integers(0, 2**32),
    copies=st.integers(1, 3),
)
def test_any_order_with_duplicates_gives_each_token_once(
    sizes: list[int], seed: int, copies: int
) -> None:
    """However chunks are reordered and doubled, tokens 0..n-1 come out once and in order."""
    sent = answer(sizes) * copies
    random.Random(seed).shuffle(sent)
    assembler = Assembler()
    got: list[TokenChunk] = []
    for one in sent:
        got += assembler.accept(one)
    assert tokens(got) == list(range(sum(sizes)))
    assert [c.finish for c in got if c.finish] == [FinishReason.STOP]
    assert got[-1].finish
    assert assembler.complete


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20), lost=st.integers(0, 19))
def test_a_lost_chunk_is_never_skipped(sizes: list[int], lost: int) -> None:
    """Without one chunk the answer stops in front of it, shows a gap, and is not complete."""
    sent = answer(sizes)
    lost %= len(sizes)
    assembler = Assembler()
    got = [c for i, one in enumerate(sent) if i != lost for c in assembler.accept(one)]
    assert tokens(got) == list(range(sum(sizes[:lost])))
    assert assembler.gap
    assert not assembler.complete
    got += assembler.accept(sent[lost])
    assert tokens(got) == list(range(sum(sizes)))
    assert assembler.complete


def test_chunks_of_another_attempt_are_fenced_off() -> None:
    """Output of a superseded attempt is dropped and counted."""
    assembler = Assembler()
    assembler.begin(1)
    assert assembler.accept(chunk(0, 1, attempt=0)) == []
    assert assembler.stale == 1
    assert tokens(assembler.accept(chunk(0, 1, attempt=1))) == [0]


def test_attempts_never_go_backwards() -> None:
    """An older attempt cannot take the stream back."""
    assembler = Assembler()
    assembler.begin(2)
    with pytest.raises(PdbusError) as raised:
        assembler.begin(1)
    assert raised.value.code is ErrorCode.INTERNAL


def test_an_end_that_does_not_match_is_a_gap_and_not_an_answer() -> None:
    """A total that differs from the tokens delivered fails the stream."""
    assembler = Assembler()
    assembler.accept(chunk(0, 2))
    wrong = TokenChunk(attempt=0, offset=2, ids=b"", finish=FinishReason.STOP, total=3)
    with pytest.raises(PdbusError) as raised:
        assembler.accept(wrong)
    assert raised.value.code is ErrorCode.STREAM_GAP
    assert not assembler.complete


def test_a_partial_overlap_is_refused() -> None:
    """A chunk that repeats some tokens and adds others can only be a fault."""
    assembler = Assembler()
    assembler.accept(chunk(0, 3))
    with pytest.raises(PdbusError) as raised:
        assembler.accept(chunk(2, 3))
    assert raised.value.code is ErrorCode.STREAM_GAP


def test_what_waits_for_a_gap_is_bounded() -> None:
    """At most 64 chunks wait behind a gap; those beyond come again with the replay."""
    assembler = Assembler()
    for offset in range(1, 80):
        assembler.accept(chunk(offset, 1))
    assert len(assembler.accept(chunk(0, 1))) == 65
    assert assembler.next == 65
    assert not assembler.gap
    assert [c.offset for c in assembler.accept(chunk(65, 1))] == [65]


def test_an_empty_answer_is_complete() -> None:
    """An answer of no tokens is an answer."""
    assembler = Assembler()
    assert len(assembler.accept(end(0))) == 1
    assert assembler.complete
