"""How nats-server is run beside the other processes of a stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli.stack.broker import broker_slot, processors
from ops.cli.stack.process import tie_to_parent


@pytest.mark.parametrize(("machine", "share"), [(1, 1), (2, 1), (7, 1), (8, 2), (64, 16)])
def test_the_server_has_a_share_of_the_processors(machine: int, share: int) -> None:
    """A quarter of them, and always one."""
    assert processors(machine) == share


def test_its_timers_may_be_late(tmp_path: Path) -> None:
    """A program starts with the slack that is asked for, and without one with its parent's."""
    slack = broker_slot(tmp_path, 4222).timer_slack_ns
    ours = int(Path("/proc/self/timerslack_ns").read_text())
    assert slack > ours
    show = (sys.executable, "-c", "print(open('/proc/self/timerslack_ns').read())")
    for asked, found in ((slack, slack), (0, ours)):
        assert int(subprocess.check_output(show, preexec_fn=tie_to_parent(asked))) == found


def test_operators_may_give_it_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GOMAXPROCS in the environment of `pdbus up` is handed on as it is."""
    monkeypatch.setenv("GOMAXPROCS", "7")
    assert broker_slot(tmp_path, 4222).env == {"GOMAXPROCS": "7"}
    monkeypatch.delenv("GOMAXPROCS")
    assert int(broker_slot(tmp_path, 4222).env["GOMAXPROCS"]) >= 1
