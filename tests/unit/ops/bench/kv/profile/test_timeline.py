"""The profile of a transfer: steps within steps, and what a thread did by kind of work."""

from __future__ import annotations

import time

from ops.bench.kv.profile.__main__ import shares, timeline
from ops.bench.kv.profile.tape import Note, Tape

US = 1000
DECODE = [
    Note("sleep", -5 * US, 20 * US, 4 * US),
    Note("copy by the kernel", 30 * US, 70 * US, 0),
    Note("take a chunk", 25 * US, 90 * US, 0),
    Note("ucx receive", 80 * US, 85 * US, 0),
    Note("sleep", 95 * US, 200 * US, 0),
]
PREFILL = [Note("hear", 10 * US, 15 * US, 0), Note("hear", 400 * US, 401 * US, 0)]


def test_a_span_is_shared_out_by_kind() -> None:
    """What a step contains is not its own, a wait for a core is no sleep, and all adds up."""
    found = shares(DECODE, 0, 100 * US)
    assert found == {"copy": 40, "Python": 30, "sleep": 21, "ucx": 5, "no core": 4}
    assert sum(found.values()) == 100


def test_steps_stand_in_the_order_of_their_begin() -> None:
    """What is within a step is indented, prefill is to the right, what is long over is left out."""
    lines = list(timeline(DECODE, PREFILL, 0, 100 * US))
    assert [line.split()[:2] for line in lines] == [
        ["-5", "sleep"],
        ["10", "hear"],
        ["25", "take"],
        ["30", "copy"],
        ["80", "ucx"],
        ["95", "sleep"],
        ["100", "the"],
    ]
    take, copy = lines[2], lines[3]
    assert copy.index("copy") == take.index("take") + 2
    assert lines[1].index("hear") > 40
    assert lines[0].endswith("sleep 25, no core 4")


def test_a_tape_notes_calls_and_forgets_what_was_cut() -> None:
    """Each call leaves its name and its time; what it returns and raises is untouched."""
    tape = Tape()
    call = tape._noted(lambda value: value + 1, "hear")
    began = time.monotonic_ns()
    assert call(1) == 2
    (note,) = tape.cut()
    assert note.step == "hear"
    assert began <= note.began <= note.ended <= time.monotonic_ns()
    assert tape.cut() == []
