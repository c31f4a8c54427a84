"""Settings of a process, read once: defaults < file < environment < command line.

After that the Struct is the only truth; nothing reads the environment again or writes to it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from libs.config.errors import SettingsError
from libs.config.fields import Field, env_name, fields_of

__all__ = ["HelpWanted", "help_text", "load"]

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class HelpWanted(Exception):
    """`--help` was given; the text is what to print."""


def load(
    kind: type[SettingsT], service: str, argv: Sequence[str], env: Mapping[str, str]
) -> SettingsT:
    """Return the settings of a service.

    Args:
        kind: a frozen Struct; the bounds of its fields are checked here.
        service: the first part of variable names, and the table of the file.
        argv: arguments without the program's name.
        env: the environment; unknown `PDBUS_<SERVICE>_*` names in it are refused.

    Raises:
        SettingsError: the text names the setting at fault.
        HelpWanted: `--help` was among the arguments.
    """
    if "--help" in argv or "-h" in argv:
        raise HelpWanted(help_text(kind, service))
    fields = {field.name: field for field in fields_of(kind)}
    from_flags, path = _from_flags(fields, service, argv)
    from_env, path_in_env = _from_env(fields, service, env)
    chosen = path or path_in_env
    from_file = _from_file(fields, service, chosen) if chosen else {}
    values: dict[str, Any] = {}
    for name, field in fields.items():
        for source in (from_flags, from_env, from_file):
            if name in source:
                origin, value = source[name]
                values[name] = _typed(field, origin, value)
                break
        else:
            if field.required:
                raise SettingsError(
                    f"{service}: {name} is missing: give {field.flag} or {env_name(service, name)}"
                )
    return kind(**values)


def help_text(kind: type[msgspec.Struct], service: str) -> str:
    """Return a list of all settings with their flags, variables, defaults and meanings."""
    lines = [
        f"usage: python -m services.{service} [--flag VALUE ...] [--config FILE]",
        "",
        f"Every flag is also a variable PDBUS_{service.upper()}_<NAME>; a flag wins over a",
        f"variable, a variable over the [{service}] table of FILE (TOML or JSON).",
        "",
    ]
    for field in fields_of(kind):
        default = "required" if field.required else (field.default_text or "none")
        lines.append(f"  {field.flag}  (default: {default})")
        if field.text:
            lines.append(f"      {field.text}")
    return "\n".join(lines)


Source = dict[str, tuple[str, object]]


def _from_flags(
    fields: Mapping[str, Field], service: str, argv: Sequence[str]
) -> tuple[Source, str | None]:
    found: Source = {}
    path: str | None = None
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, joined, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--"):
            raise SettingsError(f"{service}: unexpected argument {word!r}")
        off = name.removeprefix("no_")
        if not joined and off != name and off in fields and fields[off].is_bool:
            found[off] = (flag, "false")
            continue
        if name != "config" and name not in fields:
            raise SettingsError(f"{service}: unknown flag {flag}; --help lists them")
        if not joined:
            value = _value_after(flag, fields.get(name), service, rest)
        if name == "config":
            path = value
        else:
            found[name] = (flag, _parsed(fields[name], flag, value))
    return found, path


def _value_after(flag: str, field: Field | None, service: str, rest: list[str]) -> str:
    if field is not None and field.is_bool:
        takes = bool(rest) and rest[0] in {"true", "false", "1", "0"}
        return rest.pop(0) if takes else "true"
    if not rest:
        raise SettingsError(f"{service}: {flag} needs a value")
    return rest.pop(0)


def _from_env(
    fields: Mapping[str, Field], service: str, env: Mapping[str, str]
) -> tuple[Source, str | None]:
    known = {env_name(service, name): field for name, field in fields.items()}
    config = env_name(service, "config")
    found: Source = {}
    for variable, text in env.items():
        if variable == config or not variable.startswith(env_name(service, "")):
            continue
        if variable not in known:
            raise SettingsError(f"{service}: unknown variable {variable}; --help lists them")
        field = known[variable]
        found[field.name] = (variable, _parsed(field, variable, text))
    return found, env.get(config)


def _from_file(fields: Mapping[str, Field], service: str, path: str) -> Source:
    try:
        text = Path(path).read_text(encoding="utf-8")
        whole = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
        tables = msgspec.convert(whole, dict[str, dict[str, Any]])
    except (OSError, ValueError) as error:
        raise SettingsError(f"{service}: cannot read {path}: {error}") from error
    found: Source = {}
    for key, value in tables.get(service, {}).items():
        name = key.replace("-", "_")
        if name not in fields:
            raise SettingsError(f"{service}: {path}: unknown setting {name}")
        found[name] = (path, value)
    return found


def _parsed(field: Field, origin: str, text: str) -> object:
    try:
        return field.parse(text)
    except ValueError as error:
        raise SettingsError(f"{origin}: {field.name}: not valid JSON: {error}") from error


def _typed(field: Field, origin: str, value: object) -> Any:
    try:
        return msgspec.convert(value, field.kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{origin}: {field.name}: {error}") from error
