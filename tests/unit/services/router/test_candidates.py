"""Only compatible, living workers of the right model are candidates, and refusals say why."""

import pytest

from libs.fleet import SUSPECT_S, Fleet
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, RequestId
from proto.ledger import Mode, Sink
from proto.router import Place
from proto.workers import CompatCard, Heartbeat, Role, WorkerLoad, WorkerRef, WorkerState
from services.router.candidates import Pending, Places

SINK = Sink(gateway=InstanceId("gateway-00000000"), incarnation=Incarnation("9" * 16))


def card(**changes: object) -> CompatCard:
    facts: dict[str, object] = {
        "model": "m",
        "revision": "r",
        "tokenizer": "t",
        "dtype": "float32",
        "kv_dtype": "float32",
        "kv_layout": "nhd",
        "page_size": 16,
        "layers": 2,
        "kv_heads": 2,
        "head_dim": 16,
    }
    return CompatCard(**(facts | changes))  # type: ignore[arg-type]


def worker(fleet: Fleet, role: Role, n: int, **changes: object) -> WorkerRef:
    beat = Heartbeat(
        role=role,
        instance=InstanceId(f"{role}-{n:08d}"),
        incarnation=Incarnation(f"{role}{n}".ljust(16, "0")),
        version="1",
        sequence=1,
        sent_ms=0,
        state=WorkerState.READY,
        card=card(**changes),
        load=WorkerLoad(slots=4, slots_free=4),
    )
    fleet.hear(beat, 0.0)
    return beat.ref


def ask(**changes: object) -> Place:
    facts: dict[str, object] = {
        "rid": RequestId("a" * 26),
        "attempt": 0,
        "model": "m",
        "prompt_tokens": 10,
        "max_tokens": 10,
        "sink": SINK,
        "deadline_ms": 10,
        "not_after_ms": 10,
    }
    return Place(**(facts | changes))  # type: ignore[arg-type]


def code_of(place: Place, fleet: Fleet) -> tuple[ErrorCode, str]:
    with pytest.raises(PdbusError) as raised:
        Places(fleet, Pending()).find(place, 0.1)
    return raised.value.code, raised.value.detail


def test_all_compatible_pairs_are_found() -> None:
    """Two prefills and two decodes of one card give four pairs."""
    fleet = Fleet()
    for n in range(2):
        worker(fleet, Role.PREFILL, n)
        worker(fleet, Role.DECODE, n)
    assert len(Places(fleet, Pending()).find(ask(), 0.1)) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("revision", "x"),
        ("tokenizer", "x"),
        ("dtype", "bfloat16"),
        ("kv_dtype", "bfloat16"),
        ("kv_layout", "hnd"),
        ("page_size", 1),
        ("layers", 3),
        ("kv_heads", 4),
        ("head_dim", 32),
        ("tp", 2),
        ("pp", 2),
        ("attention", "x"),
        ("engine", "x"),
        ("engine_version", "x"),
        ("protocol", 1),
        ("draft", "x"),
        ("context_tokens", 1),
        ("model", "x"),
    ],
)
def test_a_difference_in_one_field_is_named(field: str, value: object) -> None:
    """A pair that differs in one field is refused before any prefill, and the field is named."""
    fleet = Fleet()
    worker(fleet, Role.PREFILL, 0)
    worker(fleet, Role.DECODE, 0, **{field: value})
    code, detail = code_of(ask(), fleet)
    assert code is ErrorCode.VERSION_MISMATCH
    assert detail.startswith(f"prefill and decode differ in {field} ({field}: ")


def test_a_missing_side_is_named() -> None:
    """Without a prefill worker the refusal says that prefill is missing."""
    fleet = Fleet()
    worker(fleet, Role.DECODE, 0)
    code, detail = code_of(ask(), fleet)
    assert code is ErrorCode.NO_WORKER
    assert "prefill" in detail


def test_another_model_is_no_candidate() -> None:
    """Workers of another model do not count."""
    fleet = Fleet()
    worker(fleet, Role.AGGREGATED, 0, model="other")
    assert code_of(ask(), fleet)[0] is ErrorCode.NO_WORKER


def test_a_suspect_is_used_only_where_there_is_no_other() -> None:
    """A second attempt avoids what failed the first, but not at the price of no attempt."""
    fleet = Fleet()
    bad = worker(fleet, Role.PREFILL, 0)
    worker(fleet, Role.PREFILL, 1)
    worker(fleet, Role.DECODE, 0)
    (found,) = Places(fleet, Pending()).find(ask(exclude=(bad,)), 0.1)
    assert found.prefill is not None
    assert found.prefill.ref != bad
    everyone = Places(fleet, Pending()).find(ask(), 0.1)
    both = tuple(place.prefill.ref for place in everyone if place.prefill)
    assert len(Places(fleet, Pending()).find(ask(exclude=both), 0.1)) == 2


def test_aggregated_serves_when_asked_or_when_nothing_else_does() -> None:
    """Splitting is preferred where a pair exists; the mode of the ask overrules."""
    fleet = Fleet()
    worker(fleet, Role.AGGREGATED, 0)
    assert Places(fleet, Pending()).find(ask(), 0.1)[0].prefill is None
    worker(fleet, Role.PREFILL, 0)
    worker(fleet, Role.DECODE, 0)
    assert Places(fleet, Pending()).find(ask(), 0.1)[0].prefill is not None
    assert Places(fleet, Pending()).find(ask(mode=Mode.AGGREGATED), 0.1)[0].prefill is None


def test_what_is_known_of_who_fits_does_not_outlive_a_change() -> None:
    """Silence, a failed request and a new heartbeat count at once."""
    fleet = Fleet()
    places = Places(fleet, Pending())
    first, second = (worker(fleet, Role.AGGREGATED, n) for n in range(2))
    assert len(places.find(ask(), 0.1)) == 2
    fleet.shun(first)
    assert [found.decode.ref for found in places.find(ask(), 0.2)] == [second]
    worker(fleet, Role.AGGREGATED, 2)
    assert len(places.find(ask(), 0.3)) == 2
    with pytest.raises(PdbusError):
        places.find(ask(model="other"), 0.4)
    assert len(places.find(ask(), SUSPECT_S - 0.1)) == 2
    with pytest.raises(PdbusError):
        places.find(ask(), SUSPECT_S)


def test_work_placed_since_the_last_heartbeat_counts() -> None:
    """Requests between two heartbeats do not all see the same idle worker."""
    fleet, pending = Fleet(), Pending()
    worker(fleet, Role.PREFILL, 0)
    ref = worker(fleet, Role.DECODE, 0)
    (found,) = Places(fleet, pending).find(ask(), 0.1)
    pending.add(found, 10)
    (again,) = Places(fleet, pending).find(ask(), 0.1)
    assert (again.decode_pending, again.prefill_pending_tokens) == (1, 10)
    pending.heard(ref.incarnation)
    assert Places(fleet, pending).find(ask(), 0.1)[0].decode_pending == 0


def test_the_last_turn_of_a_worker_is_known() -> None:
    """Of two workers that were used in turn, the one that waits longer has the smaller number."""
    fleet = Fleet()
    worker(fleet, Role.PREFILL, 1)
    worker(fleet, Role.DECODE, 1)
    worker(fleet, Role.DECODE, 2)
    pending = Pending()
    first, second = Places(fleet, pending).find(ask(), 0.0)
    assert pending.last(first.decode.incarnation) == 0
    pending.add(first, 10)
    pending.add(second, 10)
    assert 0 < pending.last(first.decode.incarnation) < pending.last(second.decode.incarnation)
    pending.heard(first.decode.incarnation)
    assert pending.last(first.decode.incarnation) > 0
