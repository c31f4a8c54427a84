"""What all families of cases share. Each module runs stacks of its own, and one loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cases.adapter import Processes, Product, open_product
from tests.support.words import Oracle, write_words


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers are plain words, one a token."""
    return write_words(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def oracle(words: Path) -> Oracle:
    """What the right answers are."""
    return Oracle.load(words)


@pytest.fixture
def alive() -> None:
    """All processes of the module run; modules that end some bring their own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(processes: Processes) -> AsyncIterator[Product]:
    """Watch the stack of the module."""
    async with open_product(processes) as product:
        yield product


@pytest_asyncio.fixture(loop_scope="module")
async def product(alive: None, watched: Product) -> AsyncIterator[Product]:
    """Watch the stack of the module, from rest to rest."""
    await watched.settle()
    yield watched
    watched.hang_up()
    await watched.at_rest()
