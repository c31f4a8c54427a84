"""Preparing the model in a child process, so that the supervisor stays free to answer signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

import ops
from ops.cli.errors import CommandError
from ops.cli.model_child import Line
from ops.cli.stack.layout import ModelChoice
from ops.cli.stack.process import kill_group, tie_to_parent

__all__ = ["prepare_model"]

_ROOT = Path(ops.__file__).resolve().parent.parent


async def prepare_model(
    model: str, *, root: Path, engine: str, say: Callable[[str], None]
) -> ModelChoice:
    """Return the folder of a model, made if it has to be.

    Raises:
        CommandError: it cannot be had, or the engine cannot use it.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ops.cli.model_child",
        model,
        str(root),
        cwd=_ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=tie_to_parent(),
    )
    found: Line | None = None
    try:
        async for raw in _lines(child):
            line = msgspec.json.decode(raw, type=Line)
            if line.progress:
                say(line.progress)
            else:
                found = line
        await child.wait()
    finally:
        if child.returncode is None:
            kill_group(child.pid, signal.SIGKILL)
            await child.wait()
    if found is None:
        message = f"the model {model!r} could not be prepared (exit code {child.returncode})"
        raise CommandError(message)
    if found.failure:
        raise CommandError(found.failure)
    if not found.weights and engine != "scripted":
        message = f"the model {model!r} has no weights; it runs with --engine scripted only"
        raise CommandError(message)
    return ModelChoice(found.name, Path(found.path))


async def _lines(child: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    if child.stdout is not None:
        while line := await child.stdout.readline():
            yield line
