"""The stacks that the clients talk to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.node import node
from tests.support.stack import RunningStack, run_stack
from tests.support.words import write_words

__all__ = ["node"]

PARSERS = ("--tool-parser=qwen25", "--reasoning-parser=qwen3")
SLOW = {"when": "decode", "action": "slow", "seconds": 0.05, "text": "slow answer"}
BROKEN = {"when": "decode", "action": "error", "text": "break in decode", "after_tokens": 4}


def script(*rules: dict[str, Any]) -> str:
    """Return the script of a worker that says what it is told."""
    return json.dumps({"answer": "say", "faults": list(rules)})


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one token a byte, and some words."""
    return write_words(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def stack(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run a pair that says what stands between the marks, and tells calls and reasoning apart."""
    env = {
        "PDBUS_PREFILL_SCRIPT": script(),
        "PDBUS_DECODE_SCRIPT": script(SLOW, BROKEN),
    }
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, f"--model={words}", *PARSERS, env=env) as running:
        yield running


@pytest.fixture(scope="session")
def narrow(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run a pair with one place for an answer."""
    env = {
        "PDBUS_PREFILL_SCRIPT": script(),
        "PDBUS_DECODE_SCRIPT": script(SLOW),
        "PDBUS_DECODE_SLOTS": "1",
    }
    with run_stack(tmp_path_factory.mktemp("narrow"), f"--model={words}", env=env) as running:
        yield running
