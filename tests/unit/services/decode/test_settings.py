"""Settings of a decode worker."""

from __future__ import annotations

import pytest

from libs.config import SettingsError, load
from services.decode.settings import Settings

BASE = ("--model", "m", "--nats", "nats://127.0.0.1:1")


def test_parsers_are_named_by_flag_and_variable():
    """The formats of a model are settings like any other."""
    env = {"PDBUS_DECODE_REASONING_PARSER": "qwen3"}
    settings = load(Settings, "decode", [*BASE, "--tool-parser", "hermes"], env)
    assert (settings.tool_parser, settings.reasoning_parser) == ("hermes", "qwen3")
    assert load(Settings, "decode", BASE, {}).tool_parser == ""


@pytest.mark.parametrize("flag", ["--tool-parser", "--reasoning-parser"])
def test_a_wrong_parser_is_an_error_of_the_settings(flag: str):
    """The service does not start, and says which parsers there are."""
    with pytest.raises(SettingsError, match=r"parser 'nosuch'; there are .*mistral"):
        load(Settings, "decode", [*BASE, flag, "nosuch"], {})
