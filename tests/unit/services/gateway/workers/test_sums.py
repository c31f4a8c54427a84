"""Metrics of several processes as those of one: exact sums that never fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from services.gateway.workers import Sums


class Process:
    """What one process counts."""

    def __init__(self, started: float = 1.0) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("asked", "Asked.", ["code"], registry=self.registry)
        self.seconds = Histogram("took_seconds", "Took.", buckets=(1, 5), registry=self.registry)
        self.running = Gauge("running", "Run now.", registry=self.registry)
        Gauge("process_start_time_seconds", "Start.", registry=self.registry).set(started)
        Gauge("target_info", "Who.", ["id"], registry=self.registry).labels("a").set(1)

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()


def values(sums: Sums) -> dict[str, float]:
    lines = [line for line in sums.text().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_what_is_counted_is_summed():
    """Counters and distributions add up, label by label and bucket by bucket."""
    sums, one, other = Sums(), Process(), Process()
    one.requests.labels("200").inc(3)
    other.requests.labels("200").inc(4)
    other.requests.labels("429").inc()
    for seconds in (0.5, 3, 9):
        one.seconds.observe(seconds)
        other.seconds.observe(seconds)
    sums.take("one", one.text)
    sums.take("other", other.text)
    found = values(sums)
    assert found['asked_total{code="200"}'] == 7
    assert found['asked_total{code="429"}'] == 1
    assert found['took_seconds_bucket{le="1.0"}'] == 2
    assert found['took_seconds_bucket{le="+Inf"}'] == found["took_seconds_count"] == 6
    assert found["took_seconds_sum"] == 25


def test_the_dead_stay_counted_and_run_nothing():
    """A process that ends leaves its counts, and nothing of what it was doing."""
    sums, one, other = Sums(), Process(started=5.0), Process(started=9.0)
    for process in (one, other):
        process.requests.labels("200").inc(2)
        process.seconds.observe(1)
        process.running.set(3)
    sums.take("one", one.text)
    sums.take("other", other.text)
    assert values(sums)["running"] == 6
    assert values(sums)["process_start_time_seconds"] == 9
    assert values(sums)['target_info{id="a"}'] == 1
    sums.bury("one")
    sums.bury("one")
    sums.bury("never seen")
    found = values(sums)
    assert (found['asked_total{code="200"}'], found["took_seconds_count"]) == (4, 2)
    assert found["running"] == 3
    sums.bury("other")
    found = values(sums)
    assert found['asked_total{code="200"}'] == 4
    assert "running" not in found


def test_what_cannot_be_read_changes_nothing():
    """A half answer is refused, and the last whole one stands."""
    sums, one = Sums(), Process()
    one.requests.labels("200").inc()
    sums.take("one", one.text)
    with pytest.raises(ValueError, match=r".+"):
        sums.take("one", 'asked_total{code="2')
    assert values(sums)['asked_total{code="200"}'] == 1


def test_it_can_be_read_again():
    """The text has the help and type of each metric once, and labels survive."""
    sums, one, other = Sums(), Process(), Process()
    one.requests.labels('a"b\\c\nd').inc()
    sums.take("one", one.text)
    sums.take("other", other.text)
    text = sums.text()
    assert text.count("# TYPE asked_total counter") == 1
    again = Sums()
    again.take("all", text)
    assert again.text() == text


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 2)),
            st.tuples(st.just("look"), st.integers(0, 2)),
            st.tuples(st.just("die"), st.integers(0, 2)),
        ),
        max_size=40,
    )
)
def test_no_sum_ever_falls(steps: list[tuple[str, int]]):
    """Whatever the order of work, looks and deaths: what was seen once stays counted, exactly."""
    sums = Sums()
    processes = [Process() for _ in range(3)]
    lives, asked, seen, before = [0, 0, 0], [0, 0, 0], 0, 0.0
    known = [0, 0, 0]
    for step, number in steps:
        name = f"{number}.{lives[number]}"
        if step == "ask":
            processes[number].requests.labels("200").inc()
            asked[number] += 1
        elif step == "look":
            sums.take(name, processes[number].text)
            known[number] = asked[number]
        else:
            sums.bury(name)
            seen += known[number]
            processes[number] = Process()
            lives[number] += 1
            asked[number] = known[number] = 0
        total = values(sums).get('asked_total{code="200"}', 0.0)
        assert total == seen + sum(known)
        assert total >= before
        before = total
