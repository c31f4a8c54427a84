"""Regular expressions: only those that become a grammar which means the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.openai.guides.patterns import MAX_WEIGHT, fault_of, weight_of


@pytest.mark.parametrize(
    "pattern",
    [
        *("a", "^a+$", "[a-z]{2,5}", r"\d+(\.\d+)?", "(?:a|b)*", "(?<name>x)", r"\(\)", "[(]"),
        *(r"[\])(]", "[^)]*", r"\\", "ä{2}", r"[\w.-]+@[\w.-]+", r"\u00e9"),
    ],
)
def test_plain_patterns_are_taken(pattern: str):
    """Classes, repeats, groups and escapes are what grammars can say."""
    assert fault_of(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "((", "[", "a{2,1}", "*", "(?", r"(a)\1", r"\bx", r"\Bx", r"\p{L}"),
        *("(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(?i)a", r"(?<n>a)\k<n>", "x" * 9000),
        *("a++", "a*?+", "^*a", "[]a", "[^]", "a$b", r"\d^a", "(^a)"),
        *("((a{1000}){1000}){1000}",),
    ],
)
def test_what_no_grammar_can_say_is_refused(pattern: str):
    """Broken, endless, and what would be ignored or not understood."""
    assert fault_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        *(("abc", 3), ("a{5}", 5), ("a{2,7}b", 8), ("(ab){10}", 20), ("(a{10}b){10}c", 111)),
        *(
            ("[a-z]{3}", 3),
            ("a{7,}", 7),
            ("a{0}", 1),
            (r"\d{4}-\d{2}", 7),
            ("((a{1000}){1000}){1000}", 1_000_000_000),
        ),
    ],
)
def test_repeats_are_weighed(pattern: str, weight: int):
    """Counted repeats multiply, within and around groups."""
    assert weight_of(pattern) == weight
    assert (fault_of(pattern) == "it repeats too much") is (weight > MAX_WEIGHT)


@settings(deadline=None)
@given(st.text(alphabet="ab()[]{}|*+?\\^$.,0123456789=!<>pkB-", max_size=20))
def test_what_is_taken_is_understood_by_the_grammar(pattern: str):
    """No pattern that passes breaks the engine's own compiler."""
    xgrammar = pytest.importorskip("xgrammar")
    if pattern and fault_of(pattern) is None:
        xgrammar.Grammar.from_regex(pattern)
