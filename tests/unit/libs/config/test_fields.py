"""Reading what a settings Struct says about its fields."""

from __future__ import annotations

import pytest

from libs.config import ServiceSettings, env_name, fields_of


def test_every_shared_setting_has_a_meaning():
    """No shared setting is without its docstring, so help and `.env.example` are complete."""
    assert [field.name for field in fields_of(ServiceSettings) if not field.text] == []


@pytest.mark.parametrize(
    ("service", "name", "expected"),
    [
        ("router", "health_port", "PDBUS_ROUTER_HEALTH_PORT"),
        ("my-service", "x", "PDBUS_MY_SERVICE_X"),
    ],
)
def test_variable_names_are_built_from_service_and_field(service: str, name: str, expected: str):
    """A variable is `PDBUS_<SERVICE>_<FIELD>` in capitals."""
    assert env_name(service, name) == expected


def test_default_texts_are_what_one_would_write():
    """Defaults are shown in the form in which a variable takes them."""
    texts = {field.name: field.default_text for field in fields_of(ServiceSettings)}
    assert texts["nats"] == "nats://127.0.0.1:4222"
    assert texts["die_with_parent"] == "false"
    assert texts["instance"] == ""
