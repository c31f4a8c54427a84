"""`pdbus keys`: what is printed once, and what stands in the file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ops.cli.errors import CommandError
from ops.cli.keys import add, list_keys, revoke
from proto.keyfile import KeyFile, key_hash, key_id, parse


def read(file: Path) -> KeyFile:
    return parse(file.read_bytes(), file.name)


def test_a_key_is_printed_once_and_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The file has its hash, is readable by its owner only, and never changes its secret."""
    file = tmp_path / "new" / "keys.json"
    add("acme", file=file, requests=5, model=("toy",))
    first = capsys.readouterr().out.strip()
    add("acme", file=file, tokens=7)
    second = capsys.readouterr().out.strip()
    known = read(file)
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.hash for entry in known.keys] == [
        key_hash(known.secret, key) for key in (first, second)
    ]
    rules = known.tenants["acme"]
    assert (rules.requests_per_minute, rules.tokens_per_minute) == (5, 7)
    assert rules.models == ("toy",)


def test_a_revoked_key_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The other keys stay; a key that is not there is an error."""
    file = tmp_path / "keys.json"
    add("acme", file=file)
    first = key_id(capsys.readouterr().out.strip())
    add("other", file=file)
    revoke(first, file=file)
    assert [entry.tenant for entry in read(file).keys] == ["other"]
    with pytest.raises(CommandError):
        revoke(first, file=file)
    list_keys(file=file)
    assert first not in capsys.readouterr().out


def test_what_cannot_be_used_is_left_alone(tmp_path: Path):
    """A file that is no key file, a name that is none, and TOML are refused without a change."""
    file = tmp_path / "keys.json"
    file.write_text("{}")
    with pytest.raises(CommandError):
        add("acme", file=file)
    assert file.read_text() == "{}"
    for tenant, name in (("a b", "other.json"), ("acme", "keys.toml")):
        with pytest.raises(CommandError):
            add(tenant, file=tmp_path / name)
        assert not (tmp_path / name).exists()
