"""Schemas from clients: what is refused, and that what is let through is enforced in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import ErrorCode, PdbusError
from proto.openai.drawing import JsonSchemaFormat, ResponseFormat
from proto.sampling import GuideKind
from services.gateway.openai.guides import check_schema, schema_guide
from services.gateway.openai.guides.enforceable import enforceable
from tests.support.reference import needed

VALUES = [
    *(None, True, False, 0, 1, 3, 4, 2.5, 3.5, -1, "", "a", "b", "aaa", "foo", "2020-01-02"),
    *([], [1], [1, 1], ["a"], ["a", 1], {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}),
    *({"foo": 1}, {"foo": "x", "bar": 2}, {"foo": {"foo": 1}}, {"bar": "x"}),
]
"""What schemas are tried on."""

SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": ["integer", "null"], "minimum": 3},
    {"minimum": 2},
    {"maxLength": 2},
    {"pattern": "^a+$"},
    {"required": ["a"]},
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    {"type": "object", "required": ["a"], "additionalProperties": {"type": "string"}},
    {"type": "object", "minProperties": 1},
    {"type": "object", "properties": {"a": {}}, "minProperties": 2},
    {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
    {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": True},
    {"type": "object", "additionalProperties": True, "propertyNames": {"pattern": "^a"}},
    {"type": "array", "minItems": 1},
    {"items": {"type": "integer"}, "maxItems": 1},
    {"prefixItems": [{"type": "string"}], "items": False},
    {"type": "string", "format": "date"},
    {"enum": ["a", "foo", 3], "maxLength": 2},
    {"const": 4, "type": "integer"},
    {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 2}]},
    {"oneOf": [{"type": "string"}, {"enum": [1, 3]}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]},
        ]
    },
    {"allOf": [{"type": "string"}]},
    {"type": "string", "format": "uri", "minLength": 1},
    {"type": "string", "format": "nosuch"},
    {"type": "string", "format": "date", "maxLength": 2},
    {
        "discriminator": {"propertyName": "a"},
        "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}],
        "$defs": {
            "one": {"type": "object", "properties": {"a": {"const": 1}}},
            "two": {"type": "object", "properties": {"a": {"const": "x"}}},
        },
    },
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}},
    {"type": "object", "properties": {"foo": {"$ref": "#"}}, "additionalProperties": False},
]

INVALID: list[tuple[dict[str, Any], str]] = [
    ({"type": "nosuch"}, "#/type"),
    ({"properties": 5}, "#/properties"),
    ({"required": [5]}, "#/required/0"),
    ({"minimum": "1"}, "#/minimum"),
    ({"items": [{"type": "string"}]}, "#/items"),
    ({"$ref": "#/$defs/nosuch"}, "$ref"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"$ref": "file:///etc/passwd"}, "$ref"),
    ({"$ref": 5}, "$ref"),
    ({"$ref": "#"}, "refers to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "refers to itself"),
    ({"properties": {f"p{n}": {} for n in range(1001)}}, "1000 properties"),
    ({"properties": {f"p{n}": {} for n in range(2000)}}, "1000 properties"),
    (
        {"anyOf": [{"type": "string", "pattern": "(?:a{100}){100}"}] * 3},
        "repeat too much",
    ),
    (
        {
            "$ref": "#/$defs/a0",
            "$defs": {f"a{n}": {"$ref": f"#/$defs/a{(n + 1) % 2000}"} for n in range(2000)},
        },
        "refers to itself",
    ),
    ({"enum": list(range(5001))}, "5000 values"),
    ({"description": "x" * 200_000}, "131072 bytes"),
]

UNENFORCED: list[tuple[dict[str, Any], str]] = [
    ({"not": {"type": "string"}}, "not"),
    ({"if": {}, "then": {}}, "if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, "allOf"),
    ({"type": "object", "properties": {}, "allOf": [{}]}, "allOf"),
    ({"$ref": "#/$defs/x", "maxLength": 2, "$defs": {"x": {"type": "string"}}}, "maxLength"),
    ({"maxLength": 2, "anyOf": [{"type": "string"}]}, "maxLength"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "pattern": "a", "maxLength": 2}, "pattern"),
    ({"type": "string", "pattern": "("}, "not valid"),
    ({"type": "object", "patternProperties": {"(": {}}}, "not valid"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": r"(a)\1"}, "backreferences"),
    ({"type": "string", "pattern": r"\bword"}, "boundaries"),
    ({"type": "string", "enum": [1]}, "no value"),
    ({"enum": []}, "no value"),
    ({"type": "object", "properties": {"a": False}}, "matches nothing"),
    ({"required": ["a"], "properties": {}, "additionalProperties": False}, "'a' is required"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    ({"properties": {"a": {"$id": "https://example.org"}}}, "$id"),
]


@pytest.mark.parametrize(("schema", "text"), INVALID)
def test_what_is_no_schema_is_refused(schema: dict[str, Any], text: str):
    """Broken, boundless and foreign schemas are refused, wherever they come from."""
    with pytest.raises(PdbusError) as caught:
        check_schema(schema, param="response_format")
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "response_format")
    assert text in caught.value.public_text


@pytest.mark.parametrize(("schema", "text"), UNENFORCED)
def test_what_would_be_ignored_is_refused(schema: dict[str, Any], text: str):
    """A valid schema of which the grammar would ignore a part is refused by its name."""
    with pytest.raises(PdbusError) as caught:
        schema_guide(schema, "response_format")
    error = caught.value
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "response_format")
    assert text in error.public_text


def test_depth_is_bounded():
    """A schema of forty levels is refused before anything walks it recursively."""
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(PdbusError, match="32 levels"):
        check_schema(schema, param="p")


def test_values_are_bounded_too():
    """Values within a schema are no way around the bound."""
    value: list[Any] = []
    for _ in range(900):
        value = [value]
    with pytest.raises(PdbusError, match="32 levels"):
        schema_guide({"default": value}, "p")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_narrowing_lets_nothing_in(schema: dict[str, Any]):
    """What matches the schema that is enforced matches the client's."""
    made = enforceable(schema, param="p")
    for value in VALUES:
        if jsonschema_rs.is_valid(made, value, validate_formats=True):
            assert jsonschema_rs.is_valid(schema, value), (made, value)


def suite() -> list[tuple[dict[str, Any], list[Any]]]:
    """Return the schemas of the public test suite with the values that they are tested on."""
    found: list[tuple[dict[str, Any], list[Any]]] = []
    for file in sorted(Path(needed("jsonschema")).glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            values = [test["data"] for test in group["tests"]]
            found += [(group["schema"], values)] if isinstance(group["schema"], dict) else []
    assert found
    return found


def test_no_schema_of_the_public_suite_is_a_bug():
    """Each is either refused with a client's error, or comes out narrower or equal."""
    taken = 0
    for schema, values in suite():
        try:
            guide = schema_guide(schema, "p")
        except PdbusError as error:
            assert error.spec.http == 400  # noqa: PT017 - both outcomes are allowed
            continue
        taken += 1
        assert guide.kind is GuideKind.JSON_SCHEMA
        made = json.loads(guide.text)
        for value in (*values, *VALUES):
            if jsonschema_rs.is_valid(made, value, validate_formats=True):
                assert jsonschema_rs.is_valid(schema, value), (made, value)
    assert taken > 30


def test_the_grammar_enforces_what_is_let_through():
    """The engine's grammar takes no value that the client's schema does not."""
    xgrammar = pytest.importorskip("xgrammar")
    letters = ["<eos>", *(bytes([byte]) for byte in range(256))]
    info = xgrammar.TokenizerInfo(letters, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info)

    def accepts(grammar: Any, value: Any) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar)
        text = json.dumps(value, ensure_ascii=False).encode()
        return all(matcher.accept_token(b + 1) for b in text) and matcher.accept_token(0)

    accepted = 0
    for schema, values in [*((schema, []) for schema in SCHEMAS), *suite()]:
        try:
            guide = schema_guide(schema, "p")
        except PdbusError:
            continue
        grammar = compiler.compile_json_schema(guide.text)
        for value in (*values, *VALUES):
            if accepts(grammar, value):
                accepted += 1
                assert jsonschema_rs.is_valid(schema, value), (schema, value)
    assert accepted > 100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "string", "#", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "enum"),
                    *(
                        "$ref",
                        "$defs",
                        "pattern",
                        "minimum",
                        "minLength",
                        "additionalProperties",
                        "a",
                    ),
                    *("const", "format", "prefixItems", "propertyNames", "patternProperties"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "$ref", "items"]), JSON))
def test_no_schema_is_a_bug(schema: dict[str, Any]):
    """Any JSON at all: a guide that is itself valid and no wider, or a client's error."""
    try:
        guide = schema_guide(schema, "p")
    except PdbusError as error:
        assert error.spec.http == 400  # noqa: PT017 - both outcomes are allowed
        return
    made = json.loads(guide.text)
    jsonschema_rs.meta.validate(made)
    for value in VALUES:
        if jsonschema_rs.is_valid(made, value, validate_formats=True):
            assert jsonschema_rs.is_valid(schema, value)


def test_a_format_is_what_openai_calls_it():
    """The Struct's field has the name of the JSON field."""
    given = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(name="x", schema={}))
    assert given.json_schema is not None
    assert given.json_schema.schema == {}
