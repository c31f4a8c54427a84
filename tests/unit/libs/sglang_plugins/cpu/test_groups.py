from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from libs.sglang_plugins.cpu.groups import lone_groups  # noqa: E402


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is all of its world."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _loops() -> int:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("gloo_tcp_loop")


def _loops_begun() -> int:
    """Return how many there are once the first one has its name, which it takes when it runs."""
    until = time.monotonic() + 5
    while not _loops() and time.monotonic() < until:
        time.sleep(0.01)
    return _loops()


@pytest.mark.usefixtures("alone")
def test_groups_of_one_share_one_thread() -> None:
    """Each further group of this process alone is the one that it has, and no thread is added."""
    make, before = lone_groups(), _loops_begun()
    groups = [make(dist.new_group, [0], backend="gloo") for _ in range(5)]
    assert _loops() == before >= 1
    assert all(group is groups[0] for group in groups)


@pytest.mark.usefixtures("alone")
def test_a_shared_group_adds_up_nothing_but_its_own() -> None:
    """What SGLang does with its groups gives what groups of their own would give."""
    group = lone_groups()(dist.new_group, [0], backend="gloo")
    own = torch.tensor([3, 4])
    dist.all_reduce(own, op=dist.ReduceOp.MIN, group=group)
    gathered: list[object] = [None]
    dist.all_gather_object(gathered, {"a": 1}, group=group)
    assert own.tolist() == [3, 4]
    assert gathered == [{"a": 1}]
    assert dist.get_process_group_ranks(group) == [0]


@pytest.mark.parametrize(("world", "backend"), [(2, "gloo"), (1, "nccl")])
def test_others_are_made_as_asked(
    monkeypatch: pytest.MonkeyPatch, world: int, backend: str
) -> None:
    """Groups of more processes, or of another kind, are SGLang's own business."""
    monkeypatch.setattr(dist, "get_world_size", lambda: world)
    made = [object(), object()]
    left = iter(made)
    make = lone_groups()
    found = [make(lambda *_, **__: next(left), [0], backend=backend) for _ in made]
    assert found == made
