"""Who may reach a gateway without keys, and what a key file that is wrong does to its start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libs.clock import SystemClock
from services.gateway.app import _directory
from services.gateway.settings import Settings


def settings(**changes: Any) -> Settings:
    return Settings(model="m", model_path="p", **changes)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str):
    """Programs of the same machine may ask."""
    assert _directory(settings(host=host), SystemClock()) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_any_other_address_does(host: str):
    """Others could reach it: it does not start, unless it is told to."""
    with pytest.raises(OSError, match="--keys FILE"):
        _directory(settings(host=host), SystemClock())
    assert _directory(settings(host=host, insecure_no_keys=True), SystemClock()) is None


def test_a_key_file_is_used_on_any_address(tmp_path: Path):
    """With keys the address does not matter."""
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"secret": "ab" * 32}))
    for host in ("127.0.0.1", "0.0.0.0"):
        assert _directory(settings(host=host, keys=str(file)), SystemClock()) is not None


@pytest.mark.parametrize("content", [None, "", "{}", "secret"])
def test_a_wrong_key_file_is_a_reason_not_to_start(tmp_path: Path, content: str | None):
    """A file that is missing or cannot be used is named; nobody is let in by mistake."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OSError, match=r"keys\.json cannot be used"):
        _directory(settings(keys=str(file)), SystemClock())
