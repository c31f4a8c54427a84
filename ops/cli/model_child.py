"""The child process that prepares a model: `python -m ops.cli.model_child NAME ROOT`.

It prints JSON lines: progress, then the result. It imports little, because everything waits for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

__all__ = ["Line"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: exactly one of progress, failure, or name and path."""

    progress: str = ""
    failure: str = ""
    name: str = ""
    path: str = ""
    weights: bool = True


def _tell(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _main(model: str, root: str) -> None:
    from libs.models import ModelUnavailableError, resolve  # noqa: PLC0415 - only the child needs it

    def progress(text: str) -> None:
        _tell(Line(progress=text))

    try:
        folder = resolve(model, Path(root), progress)
    except ModelUnavailableError as error:
        _tell(Line(failure=str(error)))
    else:
        _tell(Line(name=folder.name, path=str(folder.path), weights=folder.weights))


if __name__ == "__main__":
    _main(*sys.argv[1:])
