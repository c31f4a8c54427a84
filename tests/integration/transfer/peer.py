"""The test's end of `peer_process.py`."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE_BYTES = (384, 384, 1024)
ROW_BYTES = (64, 8)
PAGES = 4096

MODULE = "tests.integration.transfer.peer_process"

_names = itertools.count(1)


class Peer:
    """One engine process with a plane; orders are calls."""

    def __init__(self, **config: Any) -> None:
        settings = {"lanes": ["sysv"], "checksum_every": 1, **config.pop("settings", {})}
        environment = config.pop("environment", {})
        prefix = config.pop("prefix", ())
        self._config = {
            "seed": next(_names),
            "pages": PAGES,
            "page_bytes": PAGE_BYTES,
            "row_bytes": ROW_BYTES,
            "page_tokens": 1,
            "compat": "card",
            "incarnation": f"{next(_names):016x}",
            "settings": settings,
            **config,
        }
        mine, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", MODULE, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        theirs.close()
        mine.settimeout(40.0)
        self._socket = mine
        self._stream = mine.makefile("rw")
        self.refused: dict[str, str] | None = None
        self.address = ""
        self._order("start", **self._config)

    @property
    def incarnation(self) -> str:
        """Return the life of the engine."""
        return str(self._config["incarnation"])

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def begun(self) -> Peer:
        """Wait for the start; several peers start side by side."""
        answer = self._answer()
        self.address = answer.get("address", "")
        self.refused = answer if "refused" in answer else None
        return self

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Give an order and return its answer."""
        self._order(do, **arguments)
        return self._answer()

    def order(self, do: str, **arguments: Any) -> None:
        """Give an order whose answer is taken later."""
        self._order(do, **arguments)

    def answer(self) -> Any:
        """Take the answer to the oldest order."""
        return self._answer()

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the counters once they are as they should be; they may follow a moment later."""
        end = time.monotonic() + 10
        while not holds(stats := self("stats")):
            assert time.monotonic() < end, stats
        return stats

    def kill(self) -> None:
        """End the process without a word."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Close the plane, if the process still lives, and end it."""
        if self._process.poll() is None and self.address:
            self("close")
        self._stream.close()
        self._socket.close()
        try:
            self._process.wait(5)
        finally:
            self._process.kill()
            self._process.wait()

    def _order(self, do: str, **arguments: Any) -> None:
        self._stream.write(json.dumps({"do": do, **arguments}) + "\n")
        self._stream.flush()

    def _answer(self) -> Any:
        answer = json.loads(self._stream.readline())
        assert "error" not in answer, answer["error"]
        return answer["ok"]
