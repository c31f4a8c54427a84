"""The sweep over all seeds runs behind the other tests: it begins first and is judged last."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.sim.sweep import Sweep, processes_from_environment, sweep

_DEFAULT_SEEDS = 2000
_SEEDS = int(os.environ.get("PDBUS_SIM_SEEDS", _DEFAULT_SEEDS))

_RUNNING = pytest.StashKey[tuple[ExitStack, Sweep]]()
_FIXTURE = "swept"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move what judges the sweep to the end."""
    items.sort(key=_judges)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin the sweep, politely where other tests need the processors meanwhile."""
    config = session.config
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    if any(map(_judges, session.items)):
        _begin(config, polite=not all(map(_judges, session.items)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the sweep, also where nobody has waited for it."""
    if _RUNNING in config.stash:
        config.stash[_RUNNING][0].close()


@pytest.fixture(scope="session")
def swept(pytestconfig: pytest.Config) -> Sweep:
    """All seeds; each block is waited for when it is asked for."""
    if _RUNNING not in pytestconfig.stash:
        _begin(pytestconfig, polite=False)
    return pytestconfig.stash[_RUNNING][1]


def _judges(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())


def _begin(config: pytest.Config, *, polite: bool) -> None:
    stack = ExitStack()
    processes = 1 if polite else processes_from_environment()
    running = stack.enter_context(sweep(range(_SEEDS), processes, polite=polite))
    config.stash[_RUNNING] = (stack, running)
