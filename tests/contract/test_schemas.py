"""The wire: golden schemas, and rules that every message keeps."""

from __future__ import annotations

from enum import Enum

import msgspec
import pytest

import proto
from ops.check.golden import stale
from ops.check.messages import message_name, messages
from ops.check.schemas import FOLDER, schema_files
from proto.base import Message

KINDS = [kind for kind in messages() if issubclass(kind, Message)]


def test_no_message_has_changed_its_shape():
    """The wire changes on purpose only: `make generate` writes the schemas again."""
    assert stale(schema_files(), FOLDER) == []


def test_there_are_messages():
    """The schemas cover the messages of the bus, so an empty list would be a fault of the test."""
    assert {"router.Place", "decode.DecodeStart", "gateway.TokenChunk"} <= {
        message_name(kind) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS, ids=message_name)
def test_a_message_is_a_frozen_tagged_value(kind: type[Message]):
    """A message cannot change after it was made, and says what it is."""
    config = kind.__struct_config__
    assert config.frozen
    assert config.tag
    assert not config.forbid_unknown_fields


def test_tags_are_unique_within_their_form():
    """No two messages that may meet in one union have the same tag."""
    tags = [(kind.__struct_config__.array_like, kind.__struct_config__.tag) for kind in KINDS]
    assert len(set(tags)) == len(tags)


def test_proto_is_ours():
    """Another distribution also installs a package `proto`; it must not stand in our place."""
    assert proto.__doc__ is not None
    assert "crosses a process boundary" in proto.__doc__


def test_enums_travel_as_words():
    """A value of an enum on the wire is a lower-case word that a person can read."""
    for kind in KINDS:
        for field in msgspec.structs.fields(kind):
            if isinstance(field.type, type) and issubclass(field.type, Enum):
                for member in field.type:
                    assert isinstance(member.value, str)
                    assert member.value == member.value.lower()
