"""Masking of settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from libs.config import Secret, masked


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with secrets of several kinds."""

    token: Secret = "s3cret"
    other: Secret | None = "t0ken"
    absent: Secret | None = None
    urls: tuple[str, ...] = ("nats://user:pass@host:4222", "nats://host")
    plain: Annotated[int, Meta(ge=0)] = 3


def test_secrets_are_masked_and_the_rest_is_shown():
    """A secret never appears, absent ones and plain values do."""
    shown = masked(Settings())
    assert shown["token"] == "***"
    assert shown["other"] == "***"
    assert shown["absent"] is None
    assert shown["plain"] == 3
    assert "s3cret" not in str(shown)
    assert "t0ken" not in str(shown)


def test_the_user_part_of_a_url_is_masked():
    """Credentials in a server address are not shown, the address is."""
    assert masked(Settings())["urls"] == ["nats://***@host:4222", "nats://host"]
