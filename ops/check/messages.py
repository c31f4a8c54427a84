"""Finds every message of `proto`, for schemas and tables."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import msgspec

import proto

__all__ = ["message_name", "messages", "modules", "summary"]


def modules() -> Iterator[ModuleType]:
    """Go through the modules of `proto`, sorted by path."""
    found = pkgutil.walk_packages(proto.__path__, "proto.")
    for info in sorted(found, key=lambda info: info.name):
        yield importlib.import_module(info.name)


def messages() -> Iterator[type[msgspec.Struct]]:
    """Go through the public Structs of `proto`, sorted by module, then in source order."""
    for module in modules():
        local = [kind for kind in vars(module).values() if _is_message(kind, module)]
        yield from sorted(local, key=lambda kind: inspect.getsourcelines(kind)[1])


def message_name(kind: type) -> str:
    """Return `<module below proto>.<class>`, the name of its schema file."""
    return f"{kind.__module__.removeprefix('proto.')}.{kind.__qualname__}"


def summary(thing: object) -> str:
    """Return the first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.split(". ")[0].removesuffix(".")


def _is_message(kind: object, module: ModuleType) -> bool:
    return (
        inspect.isclass(kind)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and not kind.__name__.startswith("_")
        and kind.__name__ != "Message"
    )
