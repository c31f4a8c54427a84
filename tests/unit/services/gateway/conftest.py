"""Fixtures of the gateway's HTTP side."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.text import ModelText
from tests.unit.services.gateway.rig import Rig, ScriptedCalls, StillFleet, toy_text


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    """A model whose tokens are bytes."""
    folder: Path = tmp_path_factory.mktemp("toy")
    return toy_text(folder)


@pytest.fixture
def rig(toy: ModelText) -> Rig:
    """A gateway's HTTP side with stand-ins behind it."""
    return Rig(calls=ScriptedCalls(), fleet=StillFleet(), text=toy)
