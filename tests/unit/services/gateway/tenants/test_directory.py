"""The key file: who is let in, and what happens when it changes."""

from __future__ import annotations

import asyncio
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from proto.errors import ErrorCode, PdbusError
from proto.keyfile import KeyFileError, key_hash, key_id, parse
from services.gateway.tenants import Directory
from tests.unit.services.gateway.tenants.hand_clock import HandClock

SECRET = "0123456789abcdef" * 4
KEY, OTHER = "sk-key1.secretsecret", "sk-key2.othersecret"


def entry(key: str, tenant: str) -> dict[str, Any]:
    return {"id": key_id(key), "hash": key_hash(SECRET, key), "tenant": tenant}


def content(**changes: Any) -> dict[str, Any]:
    whole = {
        "secret": SECRET,
        "tenants": {"acme": {"requests_per_minute": 2}, "other": {}},
        "keys": [entry(KEY, "acme"), entry(OTHER, "other")],
    }
    return whole | changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(content()))
    return file


def put(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(content(**changes)))


async def read(path: Path) -> Directory:
    """Read a key file as a service does, away from the loop."""
    return await asyncio.to_thread(Directory, path, clock=HandClock())


def refused(directory: Directory, authorization: str | None) -> bool:
    try:
        directory.visitor(authorization)
    except PdbusError as error:
        return (error.code, error.spec.http) == (ErrorCode.INVALID_API_KEY, 401)
    return False


def test_a_key_leads_to_its_tenant(path: Path):
    """Each key stands for the tenant that the file names; the scheme's case does not matter."""
    directory = Directory(path, clock=HandClock())
    acme, other = directory.visitor(f"Bearer {KEY}"), directory.visitor(f"bearer  {OTHER} ")
    assert acme.tenant != other.tenant
    assert directory.visitor(f"Bearer {KEY}") is acme


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer sk-key1.",
        "Bearer sk-key1.othersecret",
        "Bearer sk-nokey.secretsecret",
        "Bearer .",
        "Bearer \x00",
        "Bearer ключ",
        "Bearer " + "x" * 100_000,
    ],
)
def test_whatever_else_is_refused(path: Path, given: str | None):
    """No key, half a key, another's id, or nonsense: 401, and nothing breaks."""
    assert refused(Directory(path, clock=HandClock()), given)


def test_every_key_costs_the_same_work(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Known or not, a key is hashed and compared in constant time."""
    directory = Directory(path, clock=HandClock())
    compared: list[tuple[int, int]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given in (KEY, KEY + "x", "sk-nokey.secret", "junk"):
        refused(directory, f"Bearer {given}")
    assert compared == [(64, 64)] * 4


def test_the_file_holds_no_key(path: Path):
    """What is stored of a key is a hash under the file's secret."""
    assert KEY not in path.read_text()
    assert "secretsecret" not in path.read_text()
    assert key_hash(SECRET, KEY) != key_hash("ff" * 32, KEY)


async def test_a_change_is_taken_over(path: Path):
    """A revoked key is refused, a new one let in, and limits go on from where they were."""
    directory = await read(path)
    acme = directory.visitor(f"Bearer {KEY}")
    acme.enter()
    acme.enter()
    new = "sk-key3.third"
    await asyncio.to_thread(put, path, keys=[entry(OTHER, "other"), entry(new, "acme")])
    await directory.refresh()
    assert refused(directory, f"Bearer {KEY}")
    assert directory.visitor(f"Bearer {new}") is acme
    with pytest.raises(PdbusError):
        acme.enter()


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        json.dumps(content(secret="short")).encode(),
        json.dumps(content(keys=[entry(KEY, "nobody")])).encode(),
        json.dumps(content(keys=[entry(KEY, "acme")] * 2)).encode(),
        json.dumps(content(tenants={"acme": {"requests_per_minute": 0}})).encode(),
        json.dumps(content(tenants={"acme": {"unknown": 1}})).encode(),
        b"[" * 100_000,
    ],
)
async def test_a_bad_file_keeps_the_former_one(path: Path, bad: bytes):
    """A file that cannot be used changes nothing, and a good one after it is taken."""
    directory = await read(path)
    await asyncio.to_thread(path.write_bytes, bad)
    await directory.refresh()
    assert not refused(directory, f"Bearer {KEY}")
    with pytest.raises(KeyFileError):
        await read(path)
    await asyncio.to_thread(put, path, keys=[])
    await directory.refresh()
    assert refused(directory, f"Bearer {KEY}")


async def test_a_missing_file_keeps_the_former_one(path: Path):
    """So does one that is away for a moment; when it is back unchanged, all is as before."""
    directory = await read(path)
    away = path.with_suffix(".away")
    await asyncio.to_thread(path.rename, away)
    await directory.refresh()
    await directory.refresh()
    assert not refused(directory, f"Bearer {KEY}")
    await asyncio.to_thread(away.rename, path)
    await directory.refresh()
    assert not refused(directory, f"Bearer {KEY}")


def test_toml_is_read_too():
    """The same content in TOML."""
    text = f"""
    secret = "{SECRET}"
    [tenants.acme]
    tokens_per_minute = 1000
    models = ["toy"]
    [[keys]]
    id = "key1"
    hash = "{key_hash(SECRET, KEY)}"
    tenant = "acme"
    """
    file = parse(text.encode(), "keys.toml")
    assert file.tenants["acme"].models == ("toy",)
    assert file.keys[0].hash == key_hash(SECRET, KEY)
