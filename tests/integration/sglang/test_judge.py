"""What aborts, crashes and cancels leave behind in a pair of real SGLang engines.

One pair serves the whole module; what a cell kills it starts again. The cells that cost a restart
each are slow, but for one crash of each side; `python -m ops.bench.judge` prints the whole table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.models import resolve
from ops.bench.judge import CELLS, Action, Pair, Phase, cancel_many, judge_cell, pair

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("sglang"),
]

QUICK_CRASHES = (
    (Phase.PREFILLING, Action.KILL_PREFILL),
    (Phase.TRANSFERRING, Action.KILL_DECODE_CHILD),
)


def _parameter(phase: Phase, action: Action):
    quick = not action.kills or (phase, action) in QUICK_CRASHES
    marks = () if quick else (pytest.mark.slow,)
    return pytest.param(phase, action, id=f"{phase}, {action.label}", marks=marks)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Return a pair of the tiny model that has answered once."""
    model = resolve("tiny", tmp_path_factory.mktemp("models"), lambda _text: None)
    async with pair(model, tmp_path_factory.mktemp("logs")) as ready:
        yield ready


@pytest.mark.parametrize(("phase", "action"), [_parameter(*cell) for cell in CELLS])
async def test_survivors_hold_nothing_and_serve_on(engines: Pair, phase: Phase, action: Action):
    """Callers see the right end, KV and rooms are free within the bound, the next one is served."""
    outcome = await judge_cell(engines, phase, action)
    assert outcome.problems == []
    assert outcome.free_s is not None


async def test_cancels_at_random_moments_leak_nothing(engines: Pair):
    """After 20 cancels in any phase, several at once, no token of KV and no room is held."""
    found = await cancel_many(engines, 20, seed=3)
    assert found.problems == []
    assert found.count == 20
    assert (found.leaked, found.rooms) == (0, 0)
