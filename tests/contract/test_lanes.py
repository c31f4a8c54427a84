"""The two lanes of the suite leave no test out, and hide no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import lanes, verdict

ROOT = Path(__file__).resolve().parents[2]


def test_each_test_is_in_one_lane():
    """Every file of tests lies below exactly one path of one lane, and every path exists."""
    paths = [path for lane in lanes() for path in lane.paths]
    assert all((ROOT / path).is_dir() for path in paths)
    for file in (ROOT / "tests").rglob("test_*.py"):
        assert sum(file.is_relative_to(ROOT / path) for path in paths) == 1, file


def test_a_new_folder_is_in_the_other_lane(tmp_path: Path):
    """Folders of tests that nobody has named are found, also deep ones; others are no lane's."""
    for place in ("e2e/test_a.py", "new/deep/test_b.py", "support/stack.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    assert [lane.paths for lane in lanes(tmp_path)][1] == ("tests/new",)


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((5, 0), 0), ((5, 5), 5), ((5, 1), 1), ((0, -9), 9)],
)
def test_the_worst_lane_is_the_verdict(codes: tuple[int, int], code: int):
    """Any failure is one of the whole; a lane without a selected test is no failure by itself."""
    assert verdict(codes) == code
