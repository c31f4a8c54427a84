"""Loading settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from libs.config import HelpWanted, ServiceSettings, SettingsError, load


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """Settings of a service that exists only here."""

    model: str
    """Name of the model."""
    max_queue: Annotated[int, Meta(ge=1)] = 8
    """Most requests
    that wait."""
    lanes: tuple[str, ...] = ("sysv", "tcp")
    """Lanes, best first."""
    extra: dict[str, Any] = {}
    """More."""
    verbose: bool = True
    """Whether to say more."""


def read(*argv: str, env: dict[str, str] | None = None) -> Settings:
    return load(Settings, "router", ("--model", "m", *argv), env or {})


def test_defaults_hold_without_any_source():
    """A setting that nobody gives has its default."""
    settings = read()
    assert settings.max_queue == 8
    assert settings.lanes == ("sysv", "tcp")
    assert settings.nats == ("nats://127.0.0.1:4222",)


def test_flag_wins_over_variable_over_file(tmp_path: Path):
    """The order of the sources is defaults < file < environment < command line."""
    file = tmp_path / "pdbus.toml"
    file.write_text('[router]\nmax-queue = 2\nlanes = ["a"]\nlog_level = "error"\n[other]\nx = 1\n')
    config = f"--config={file}"
    env = {"PDBUS_ROUTER_MAX_QUEUE": "3", "PDBUS_ROUTER_LANES": "b,c"}
    assert read(config).max_queue == 2
    assert read(config, env=env).max_queue == 3
    assert read(config, "--max-queue", "4", env=env).max_queue == 4
    assert read(config, env=env).lanes == ("b", "c")
    assert read(config, env=env).log_level == "error"


def test_file_may_be_named_by_a_variable_and_may_be_json(tmp_path: Path):
    """`PDBUS_<SERVICE>_CONFIG` names a file as `--config` does, and JSON is read too."""
    file = tmp_path / "pdbus.json"
    file.write_text('{"router": {"max_queue": 5}}')
    assert read(env={"PDBUS_ROUTER_CONFIG": str(file)}).max_queue == 5


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--verbose"], True),
        (["--verbose=false"], False),
        (["--verbose", "false"], False),
        (["--no-verbose"], False),
        (["--verbose", "--max-queue", "2"], True),
    ],
)
def test_a_bool_flag_needs_no_value(argv: list[str], expected: bool):
    """`--flag` switches on, `--no-flag` off, and a value is taken where it is given."""
    assert read(*argv).verbose is expected


def test_lists_and_tables_have_a_text_form():
    """A list is written with commas or as JSON, a table as JSON."""
    assert read("--lanes", "a, b").lanes == ("a", "b")
    assert read("--lanes", '["a,b"]').lanes == ("a,b",)
    assert read("--extra", '{"a": {"b": 1}}').extra == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["--max-queue", "0"], {}, ["--max-queue", "max_queue", ">= 1"]),
        (["--max-queue", "many"], {}, ["--max-queue", "int"]),
        ([], {"PDBUS_ROUTER_MAX_QUEUE": "0"}, ["PDBUS_ROUTER_MAX_QUEUE", ">= 1"]),
        ([], {"PDBUS_ROUTER_MAX_QEUE": "3"}, ["PDBUS_ROUTER_MAX_QEUE", "unknown"]),
        (["--max-qeue", "3"], {}, ["--max-qeue", "unknown"]),
        (["--max-queue"], {}, ["--max-queue", "value"]),
        (["stray"], {}, ["stray"]),
        (["--log-level", "loud"], {}, ["--log-level", "loud"]),
        (["--extra", "{"], {}, ["--extra", "JSON"]),
        (["--instance", "Not An Id"], {}, ["--instance"]),
        (["--config", "/nonexistent.toml"], {}, ["/nonexistent.toml"]),
    ],
)
def test_an_error_names_the_setting_and_its_source(
    argv: list[str], env: dict[str, str], words: list[str]
):
    """Whoever made a mistake reads which setting is wrong, where, and why."""
    with pytest.raises(SettingsError) as caught:
        read(*argv, env=env)
    for word in words:
        assert word in str(caught.value)


def test_a_file_with_an_unknown_setting_is_refused(tmp_path: Path):
    """A typing error in a file is not silently ignored."""
    file = tmp_path / "pdbus.toml"
    file.write_text("[router]\nmax_qeue = 2\n")
    with pytest.raises(SettingsError, match="max_qeue"):
        read(f"--config={file}")


def test_a_required_setting_must_be_given():
    """The text names both ways to give a setting that has no default."""
    with pytest.raises(SettingsError, match="--model or PDBUS_ROUTER_MODEL"):
        load(Settings, "router", [], {})


def test_variables_of_other_programs_are_ignored():
    """Only names that begin with this service's prefix are looked at."""
    assert read(env={"PDBUS_DECODE_ZZZ": "1", "HOME": "/"}).max_queue == 8


def test_help_lists_every_setting_with_its_meaning():
    """`--help` shows flags, defaults and the docstrings of the fields, also inherited ones."""
    with pytest.raises(HelpWanted) as caught:
        load(Settings, "router", ["--help"], {})
    text = str(caught.value)
    assert "--max-queue  (default: 8)" in text
    assert "Most requests that wait." in text
    assert "--model  (default: required)" in text
    assert "--lanes  (default: sysv,tcp)" in text
    assert "Port on 127.0.0.1" in text


def test_settings_cannot_be_changed_after_loading():
    """The loaded settings are the only truth, and stay as they are."""
    settings = read()
    with pytest.raises(AttributeError):
        settings.max_queue = 3
