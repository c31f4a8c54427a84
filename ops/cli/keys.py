"""API keys: `pdbus keys add`, `list` and `revoke` edit the file that gateways read."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.table import Table

from ops.cli.arguments import STATE_DIR
from ops.cli.errors import CommandError
from ops.cli.views.screen import screen
from proto.keyfile import KeyEntry, KeyFile, KeyFileError, TenantRules, key_hash, parse

__all__ = ["DEFAULT_FILE", "make_keys_app"]

DEFAULT_FILE = STATE_DIR / "keys.json"

_ID_BYTES = 5
_SECRET_BYTES = 32
_Limit = Annotated[int, Parameter(validator=Number(gte=1))]
_File = Annotated[Path, Parameter(name="--file")]


def make_keys_app() -> App:
    """Return the commands."""
    app = App(name="keys", help="Make, list and revoke API keys.", version_flags=())
    for name, command in (("add", add), ("list", list_keys), ("revoke", revoke)):
        app.command(command, name=name)
    return app


def add(  # noqa: PLR0913 - one argument an option
    tenant: str,
    *,
    file: _File = DEFAULT_FILE,
    requests: _Limit | None = None,
    tokens: _Limit | None = None,
    streams: _Limit | None = None,
    priority: Annotated[int, Parameter(validator=Number(gte=-10, lte=10))] | None = None,
    model: tuple[str, ...] = (),
    recover: Literal["never", "greedy", "any"] | None = None,
) -> None:
    """Make a key for a tenant and print it, this once; limits that are given replace the old ones.

    Args:
        tenant: whose key it is; a new name makes a new tenant.
        file: the key file, JSON; made if it is missing.
        requests: most requests a minute.
        tokens: most prompt tokens a minute.
        streams: most requests at the same time.
        priority: who is served first where requests wait: the higher one.
        model: allow only this model; may be given several times.
        recover: whether answers go on with another decode when their own dies.
    """
    known = _read(file) if file.exists() else KeyFile(secret=secrets.token_hex(_SECRET_BYTES))
    given = {
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "streams": streams,
        "priority": priority,
        "models": model or None,
        "recover": recover,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    rules = msgspec.structs.replace(known.tenants.get(tenant, TenantRules()), **changes)
    name = secrets.token_hex(_ID_BYTES)
    key = f"sk-{name}.{secrets.token_urlsafe(_SECRET_BYTES)}"
    entry = KeyEntry(
        id=name,
        hash=key_hash(known.secret, key),
        tenant=tenant,
        created=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    _write(
        file,
        msgspec.structs.replace(
            known, tenants={**known.tenants, tenant: rules}, keys=(*known.keys, entry)
        ),
    )
    sys.stdout.write(f"{key}\n")


def list_keys(*, file: _File = DEFAULT_FILE) -> None:
    """List keys by their ids, with what their tenants may use.

    Args:
        file: the key file.
    """
    known = _read(file)
    table = Table("key", "tenant", "created", "requests/min", "tokens/min", "streams", "priority")
    table.add_column("models")
    for entry in known.keys:
        rules = known.tenants[entry.tenant]
        limits = (rules.requests_per_minute, rules.tokens_per_minute, rules.streams)
        table.add_row(
            entry.id,
            entry.tenant,
            entry.created,
            *("-" if limit is None else str(limit) for limit in limits),
            str(rules.priority),
            "all" if rules.models is None else ", ".join(rules.models),
        )
    screen().print(table)


def revoke(key: str, *, file: _File = DEFAULT_FILE) -> None:
    """Take a key out of the file; gateways refuse it within a second or two.

    Args:
        key: its id, the part between `sk-` and the dot.
        file: the key file.
    """
    known = _read(file)
    left = tuple(entry for entry in known.keys if entry.id != key)
    if len(left) == len(known.keys):
        message = f"there is no key {key} in {file}"
        raise CommandError(message)
    _write(file, msgspec.structs.replace(known, keys=left))


def _read(file: Path) -> KeyFile:
    try:
        return parse(file.read_bytes(), file.name)
    except (OSError, KeyFileError) as error:
        message = f"{file} cannot be used: {error}"
        raise CommandError(message) from error


def _write(file: Path, content: KeyFile) -> None:
    """Replace the file in one step, readable by its owner only."""
    if file.suffix == ".toml":
        message = f"{file} is TOML, which is edited by hand; use a JSON file"
        raise CommandError(message)
    plain = {
        "secret": content.secret,
        "tenants": {
            name: {
                field: value
                for field, value in msgspec.to_builtins(rules).items()
                if value is not None
            }
            for name, rules in content.tenants.items()
        },
        "keys": msgspec.to_builtins(content.keys),
    }
    text = json.dumps(plain, indent=2) + "\n"
    try:
        # What was written is read again before anybody uses it: a wrong name is told here.
        parse(text.encode(), file.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:
            draft.write(text)
        Path(draft.name).replace(file)
    except (OSError, KeyFileError) as error:
        message = f"{file} cannot be written: {error}"
        raise CommandError(message) from error
