"""What is wrong between workers is told with the pair that it is about."""

from __future__ import annotations

import pytest

from ops.cli.doctor import Finding, Level, examine_fleet
from ops.cli.views.pairs import PairRow, pair_table, rows
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane, PeerAddress
from proto.pairs import LanePolicy, PairReport, PairState, SizeProbe
from proto.workers import CompatCard, Heartbeat, Role, WorkerLoad, WorkerState
from tests.support.records import card_of

CARD = card_of()
SIZES = (
    SizeProbe(size_bytes=1 << 10, seconds=50e-6, lane=Lane.SYSV),
    SizeProbe(size_bytes=4 << 20, seconds=2e-3, lane=Lane.SYSV),
)


def beat(role: Role, n: int = 0, **changes) -> Heartbeat:
    """Return the word of one worker."""
    facts = {
        "role": role,
        "instance": InstanceId(f"{role}-{n}"),
        "incarnation": Incarnation(f"{role}{n}".ljust(16, "0")),
        "version": "1",
        "sequence": 1,
        "sent_ms": 0,
        "state": WorkerState.READY,
        "card": CARD,
        "address": PeerAddress(incarnation="i", host="h"),
    }
    return Heartbeat(**(facts | changes))


def report(prefill: Heartbeat, **changes) -> PairReport:
    """Return what decode knows of its way to one prefill."""
    facts = {
        "peer": prefill.incarnation,
        "instance": prefill.instance,
        "state": PairState.UP,
        "lane": Lane.SYSV,
        "latency_s": 50e-6,
        "bytes_per_s": 2e9,
        "sizes": SIZES,
    }
    return PairReport(**(facts | changes))


def examined(*beats: Heartbeat) -> list[Finding]:
    """Return what is not well."""
    return [one for one in examine_fleet(beats, rows(beats)) if one.level is not Level.OK]


def test_a_healthy_pair_needs_no_word() -> None:
    """All pairs can be used: that is all there is to say."""
    prefill = beat(Role.PREFILL)
    decode = beat(Role.DECODE, pairs=(report(prefill),))
    (finding,) = examine_fleet([prefill, decode], rows([prefill, decode]))
    assert (finding.level, finding.text) == (Level.OK, "all 1 pairs can be used")


@pytest.mark.parametrize(
    ("changes", "check", "level", "text"),
    [
        (
            {"code": ErrorCode.PREFILL_LOST, "state": PairState.FAILED, "detail": "no answer"},
            "network",
            Level.PROBLEM,
            "no shared network: decode-0 cannot reach prefill-0: no answer",
        ),
        (
            {
                "code": ErrorCode.LANE_REFUSED,
                "state": PairState.REFUSED,
                "lane": Lane.UNKNOWN,
                "detail": "no common lane: decode has tcp, prefill has sysv",
            },
            "network",
            Level.PROBLEM,
            "no common lane",
        ),
        ({"lane": Lane.TCP}, "lanes", Level.WARNING, "take tcp though their workers share memory"),
        ({"state": PairState.UNKNOWN}, "pairs", Level.NOTE, "was not probed yet"),
    ],
)
def test_a_bad_way_is_explained(
    changes: dict[str, object], check: str, level: Level, text: str
) -> None:
    """The finding says which pair, and what to do."""
    prefill = beat(Role.PREFILL)
    (finding,) = examined(prefill, beat(Role.DECODE, pairs=(report(prefill, **changes),)))
    assert (finding.check, finding.level) == (check, level)
    assert text in finding.text
    assert finding.fix


@pytest.mark.parametrize("paired", [True, False])
def test_links_without_shared_memory_are_named(paired: bool) -> None:
    """Whoever got no segment is told of, with a pair and without, and what to look for."""
    prefill = beat(Role.PREFILL)
    pairs = (report(prefill),) if paired else ()
    decode = beat(Role.DECODE, pairs=pairs, load=WorkerLoad(kv_unshared_links=2))
    beats = (prefill, decode) if paired else (decode,)
    (finding,) = [one for one in examined(*beats) if one.check == "shared memory"]
    assert finding.level is Level.WARNING
    assert "decode-0: 2 links on one host got no System V memory" in finding.text
    for word in ("kernel.shmmax", "shmall", "shmmni", "IPC namespace"):
        assert word in finding.fix


def test_cards_that_differ_are_named() -> None:
    """The field and both values."""
    other = CompatCard(**{**{n: getattr(CARD, n) for n in CARD.__struct_fields__}, "page_size": 1})
    (finding,) = examined(beat(Role.PREFILL), beat(Role.DECODE, card=other))
    assert (finding.check, finding.level) == ("cards", Level.PROBLEM)
    assert "page_size: 16 in prefill-0, 1 in decode-0" in finding.text


def test_a_breach_of_a_policy_is_named() -> None:
    """Who requires what, and what the pair is on; before the probe the lane counts as wrong."""
    policy = LanePolicy.parse("require:rc")
    prefill = beat(Role.PREFILL)
    for pairs in ((report(prefill),), ()):
        found = examined(prefill, beat(Role.DECODE, kv_lanes=policy, pairs=pairs))
        (finding,) = [one for one in found if one.level is Level.PROBLEM]
        assert finding.check == "lanes"
        lane = "sysv" if pairs else "unknown"
        assert f"lane {lane}, decode-0 requires rc" in finding.text


def test_a_slow_pair_stands_out() -> None:
    """One of four that is ten times slower than the others on its lane."""
    prefills = [beat(Role.PREFILL, n) for n in range(4)]
    speeds = (2e9, 2e9, 2.2e9, 0.2e9)
    reports = tuple(
        report(one, bytes_per_s=speed) for one, speed in zip(prefills, speeds, strict=True)
    )
    (finding,) = examined(*prefills, beat(Role.DECODE, pairs=reports))
    assert finding.text == "prefill-3 → decode-0 does 0.20 GB/s, others on sysv 2.00"


def test_workers_without_partners_are_pointed_out() -> None:
    """A fleet of decodes only has no pair."""
    (finding,) = examined(beat(Role.DECODE))
    assert finding.level is Level.WARNING
    assert "no pair among them" in finding.text


def test_the_table_shows_figures_and_reasons() -> None:
    """One line a way: measured ones by size, refused ones with why."""
    prefill, other = (
        beat(Role.PREFILL, 0),
        beat(Role.PREFILL, 1, kv_lanes=LanePolicy.parse("require:rc")),
    )
    decode = beat(Role.DECODE, pairs=(report(prefill), report(other)))
    table = pair_table(rows([prefill, other, decode]))
    columns = [list(column.cells) for column in table.columns]
    first, second = zip(*columns, strict=True)
    assert first[2:] == ("up", "sysv", "50 µs", "2.00 GB/s", "1 KiB 50 µs, 4 MiB 2.00 ms", "")
    assert second[2] == "refused"
    assert "requires rc" in second[-1]
    assert isinstance(rows([prefill, other, decode])[0], PairRow)


def test_the_table_says_what_was_measured() -> None:
    """A probe's messages may take another transport than the pages: then it is named."""
    prefill = beat(Role.PREFILL)
    decode = beat(Role.DECODE, pairs=(report(prefill, lane=Lane.CMA),))
    table = pair_table(rows([prefill, decode]))
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells[3] == "cma"
    assert str(cells[6]).endswith("4 MiB 2.00 ms (on sysv)")
