"""Pages, and what is read from them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from libs.engine.script.memory import KvMemory, PageAllocator, Spans


def memory():
    """Memory for eight pages of four tokens."""
    return KvMemory(pages=8, page_size=4, buffers=4, words=2, rows=2, places=32)


@given(st.lists(st.integers(0, 6), max_size=40))
def test_no_number_is_held_twice(sizes):
    """Whatever is taken and given back, held numbers are distinct and the count is right."""
    allocator = PageAllocator(16)
    held = []
    for size in sizes:
        taken = allocator.take(size)
        if taken is None:
            assert size > 16 - sum(map(len, held))
            if held:
                allocator.give(held.pop(0))
            continue
        held.append(taken)
        numbers = [number for group in held for number in group]
        assert len(set(numbers)) == len(numbers) == allocator.used
    for group in held:
        allocator.give(group)
    assert allocator.used == 0
    assert sorted(allocator.take(16)) == list(range(16))


def test_a_freed_page_is_used_next():
    """The page that was freed last is the next one: reuse happens early and shows faults."""
    allocator = PageAllocator(8)
    first = allocator.take(2)
    allocator.give(first)
    assert allocator.take(2) == first


def test_writes_are_seen_by_page_in_every_buffer():
    """What is written by token is found at the right place of the right page of each buffer."""
    kv = memory()
    places = kv.places([5, 2])
    contents = np.arange(8 * 4 * 2, dtype=np.uint64).reshape(8, 4, 2) + 1
    kv.write(places[0], contents.reshape(8, 8))
    for number, array in enumerate(kv.page_arrays):
        assert array.shape == (8, 4 * 16)
        words = array.view(np.uint64).reshape(8, 4, 2)
        assert (words[5] == contents[:4, number]).all()
        assert (words[2] == contents[4:, number]).all()
        assert not words[[0, 1, 3, 4, 6, 7]].any()


def test_reading_sees_one_changed_bit_anywhere():
    """A sum changes with any bit of any word of its span, and with the order of pages."""
    kv = memory()
    places = kv.places([5, 2])
    rng = np.random.default_rng(1)
    kv.write(places[0], rng.integers(1, 2**63, size=(8, 8)).astype(np.uint64))
    spans = [places[1, :7], places[3, :8]]
    before = kv.read(spans).tolist()
    assert before == [int(kv.read([span])[0]) for span in spans]
    swapped = kv.places([2, 5])
    assert kv.read([swapped[3, :8]])[0] != before[1]
    for page in (5, 2):
        array = kv.page_arrays[3]
        array[page, 17] ^= 4
        assert kv.read(spans)[1] != before[1]
        array[page, 17] ^= 4
    assert kv.read(spans).tolist() == before


def test_rows_hold_full_words():
    """A row keeps 64-bit values."""
    kv = memory()
    kv.set_row(1, (2**63 - 1, 5, 7, 2**64 - 1))
    assert kv.row(1) == [2**63 - 1, 5, 7, 2**64 - 1]
    assert kv.row(0) == [0, 0, 0, 0]
    assert kv.row_array.shape == (2, 32)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_spans_grow_as_if_they_were_read_anew(requests, steps):
    """Step by step the sums are those of all that is written, buffer after buffer, and no more."""
    kv = KvMemory(pages=64, page_size=4, buffers=4, words=2, rows=2, places=64)
    rng = np.random.default_rng(1)
    for array in kv.page_arrays:
        array[:] = rng.integers(0, 255, size=array.shape, dtype=np.uint8)
    tables = [kv.places(range(n * 16 + 5, n * 16, -1)) for n in range(len(requests))]
    written = [count for count, _ in requests]
    turns = [turn for _, turn in requests]
    spans = Spans(kv, tables, written, turns)
    for step in range(min(steps, spans.left)):
        contents = rng.integers(1, 2**63, size=(len(requests), 8)).astype(np.uint64)
        spans.write(contents)
        own = [
            table[(turn + step) % 4, : count + step + 1]
            for table, count, turn in zip(tables, written, turns, strict=True)
        ]
        assert spans.read().tolist() == kv.read(own).tolist()
        for table, count, words in zip(tables, written, contents, strict=True):
            assert kv.word(table[1, count + step]) == words[2]


def test_spans_see_one_changed_bit():
    """What was written long before is read again in each step."""
    kv = memory()
    table = kv.places([5, 2])
    kv.write(table[0, :3], np.ones((3, 8), dtype=np.uint64))
    sums = []
    for flip in (0, 1):
        spans = Spans(kv, [table], [3], [0])
        spans.write(np.full((1, 8), 7, dtype=np.uint64))
        kv.page_arrays[0][5, 17] ^= flip
        sums.append(spans.read()[0])
    assert sums[0] != sums[1]
