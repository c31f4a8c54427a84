"""Building a folder exactly once, however many processes ask for it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from libs.models.api import ModelUnavailableError, Progress

__all__ = ["build_once", "run_child"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_LAST_LINES = 5


def build_once(target: Path, build: Callable[[Path], None], progress: Progress) -> Path:
    """Return `target`, built by `build` in a temporary folder and renamed when complete.

    A second process that asks at the same time waits for the first. A folder left half-made by a
    crash is never seen under its final name.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock", progress):
        if target.is_dir():
            return target
        for leftover in target.parent.glob(f".{target.name}.building-*"):
            shutil.rmtree(leftover)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.building-", dir=target.parent))
        try:
            work.chmod(0o755)
            build(work)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def run_child(module: str, *arguments: str, progress: Progress) -> None:
    """Run `python -m module` and pass each line that it prints to `progress`.

    Raises:
        ModelUnavailableError: it failed; the text carries its last words.
    """
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        ) as child,
    ):
        for line in child.stdout or ():
            progress(line.rstrip())
        if child.wait() != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-_LAST_LINES:]
            raise ModelUnavailableError(" / ".join(last) or f"{module} failed")


@contextmanager
def _locked(path: Path, progress: Progress) -> Generator[None]:
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the model")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
