"""Identities that the service API can carry."""

from __future__ import annotations

import pytest

from libs.bus import ServiceIdentity
from proto.ids import InstanceId


def test_a_usual_identity_is_accepted():
    """Names as pdbus makes them are good."""
    identity = ServiceIdentity("decode", "0.1.0", InstanceId("decode-0a1b2c3d"), {"role": "decode"})
    assert identity.metadata == {"role": "decode"}


@pytest.mark.parametrize(
    ("service", "version", "instance"),
    [
        ("two words", "0.1.0", "i"),
        ("a.b", "0.1.0", "i"),
        ("", "0.1.0", "i"),
        ("a", "1", "i"),
        ("a", "", "i"),
        ("a", "0.1.0", "x.y"),
        ("a", "0.1.0", "*"),
        ("a", "0.1.0", ""),
    ],
)
def test_names_that_would_break_a_subject_are_refused(service, version, instance):
    """A name cannot add a token or a wildcard to a control subject; versions are semantic."""
    with pytest.raises(ValueError, match=r"is no|cannot stand"):
        ServiceIdentity(service, version, InstanceId(instance))
