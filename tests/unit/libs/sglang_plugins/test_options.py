from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from libs.sglang_plugins import PLATFORM, PLUGIN, BackendOptions
from proto.kv import Lane


def test_options_cross_the_environment():
    """What the host sets is what the plugin reads."""
    options = BackendOptions(
        incarnation="a" * 16, host_socket="/x", lanes=(Lane.TCP,), fork=True, want_timeout_s=1.5
    )
    assert BackendOptions.from_environment(options.to_environment()) == options


def test_a_foreign_process_has_no_options():
    """A process that no engine host started is told so."""
    with pytest.raises(KeyError):
        BackendOptions.from_environment({})


def test_the_entry_points_have_the_names_that_the_host_selects():
    """SGLang finds the plugins by the names in `pyproject.toml`."""
    root = Path(__file__).parents[4]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert points["sglang.srt.platforms"] == {PLATFORM: "libs.sglang_plugins.platform:activate"}
    assert points["sglang.srt.plugins"] == {PLUGIN: "libs.sglang_plugins.plugin:register"}
