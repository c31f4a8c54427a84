"""The names of SGLang's parsers."""

import pytest

from libs.engine.parse import check_names, known_names


def test_names_are_read_from_the_installed_sglang():
    """The usual formats are known, each tool parser with the class that is to be loaded."""
    known = known_names()
    assert {"qwen25", "hermes", "llama3", "mistral", "deepseekv3"} <= set(known.tools)
    assert {"qwen3", "deepseek-r1", "gpt-oss"} <= set(known.reasoning)
    module, owner = known.tools["hermes"]
    assert (module, owner) == ("sglang.srt.function_call.hermes_detector", "HermesDetector")


def test_a_wrong_name_is_refused_with_the_right_ones():
    """Who mistypes a parser reads which ones there are."""
    check_names("hermes", "qwen3")
    check_names("", "")
    with pytest.raises(ValueError, match=r"no tool parser 'nosuch'; there are .*hermes.*qwen25"):
        check_names("nosuch", "")
    with pytest.raises(ValueError, match=r"no reasoning parser 'hermes'; there are .*qwen3"):
        check_names("", "hermes")
