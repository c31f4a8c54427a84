"""Each trouble that a host can have is found in its facts, with what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.transfer.ucx.lanes import lane_options
from ops.cli.doctor import HOST_CHECKS, Facts, Finding, Interface, Level, examine
from ops.cli.doctor.checks import OWN_VARIABLES
from proto.kv import Lane

ETH = Interface(name="eth0", mtu=9000, speed_mbps=100_000)
LO = Interface(name="lo", mtu=65536, loopback=True)
HEALTHY = Facts(
    environment={},
    interfaces=(LO, ETH),
    rdma_devices=("mlx5_0",),
    rdma_nodes=("uverbs0",),
    ptrace_scope=0,
    may_ptrace=False,
    attach_error=None,
    shm_bytes=8 << 30,
    shm_free_bytes=8 << 30,
    shmmax_bytes=1 << 40,
    shmmni=4096,
    shm_segments=10,
    memlock_bytes=None,
    files=65536,
)


def found(check: str, **changes: Any) -> list[Finding]:
    """Return what one check says of a healthy host with one thing changed."""
    facts = replace(HEALTHY, **changes)
    return [finding for finding in examine(facts) if finding.check == check]


def test_a_healthy_host_has_nothing_but_ok() -> None:
    """No check cries wolf, and each says what it has looked at."""
    answers = examine(HEALTHY)
    assert {finding.level for finding in answers} == {Level.OK}
    # Variables that are not set, and files where there are enough, need no word.
    assert len(answers) == len(HOST_CHECKS) - 1
    assert [finding for finding in answers if finding.fix] == []


@pytest.mark.parametrize(
    ("check", "changes", "level", "text", "fix"),
    [
        (
            "transports",
            {"environment": {"UCX_TLS": "tcp,tpc"}},
            Level.PROBLEM,
            "names no transport of UCX: 'tpc'",
            "unset UCX_TLS",
        ),
        (
            "transports",
            {"environment": {"UCX_TLS": "rc"}},
            Level.PROBLEM,
            "lane tcp is excluded by UCX_TLS=rc",
            "do not start",
        ),
        (
            "transports",
            {"environment": {"UCX_TLS": "sm"}},
            Level.WARNING,
            "lane tcp is excluded by UCX_TLS=sm",
            "to reach peers on other hosts by tcp",
        ),
        (
            "variables",
            {"environment": {"UCX_RNDV_THRESH": "8k"}},
            Level.NOTE,
            "UCX_RNDV_THRESH is set, and has no effect",
            "unset UCX_RNDV_THRESH",
        ),
        (
            "interface",
            {"environment": {"UCX_NET_DEVICES": "nosuch0"}},
            Level.PROBLEM,
            "UCX_NET_DEVICES=nosuch0: there is no such device",
            "name one of: lo, eth0",
        ),
        (
            "interface",
            {"environment": {"PDBUS_DECODE_KV_INTERFACE": "lo"}},
            Level.WARNING,
            "PDBUS_DECODE_KV_INTERFACE=lo is loopback",
            "the network that the workers share",
        ),
        (
            "interface",
            {
                "environment": {"UCX_NET_DEVICES": "docker0"},
                "interfaces": (LO, ETH, Interface(name="docker0", virtual=True)),
            },
            Level.WARNING,
            "is a bridge that every host has",
            "the network that the workers share",
        ),
        (
            "interface",
            {
                "environment": {"UCX_NET_DEVICES": "eth0"},
                "interfaces": (LO, replace(ETH, up=False)),
            },
            Level.PROBLEM,
            "UCX_NET_DEVICES=eth0 is down",
            "ip link set eth0 up",
        ),
        (
            "interface",
            {"interfaces": (LO, ETH, Interface(name="eth1"))},
            Level.WARNING,
            "may take any of eth0, eth1",
            "PDBUS_PREFILL_KV_INTERFACE",
        ),
        (
            "interface",
            {"interfaces": (LO,)},
            Level.WARNING,
            "no network device but loopback",
            "attach the container to a network",
        ),
        (
            "mtu",
            {"interfaces": (LO, replace(ETH, mtu=1400))},
            Level.WARNING,
            "eth0 has an MTU of 1400",
            "use the network below it",
        ),
        (
            "mtu",
            {"interfaces": (LO, replace(ETH, mtu=1500))},
            Level.NOTE,
            "eth0 does 100000 Mbit/s with an MTU of 1500",
            "set an MTU of 9000",
        ),
        (
            "shared memory",
            {"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20},
            Level.PROBLEM,
            "/dev/shm has 64 MiB",
            "--shm-size=1g",
        ),
        (
            "shared memory",
            {"shm_free_bytes": 10 << 20},
            Level.WARNING,
            "/dev/shm has 10 MiB left of 8192",
            "remove what dead processes",
        ),
        (
            "shared memory",
            {"shmmax_bytes": 32 << 20},
            Level.PROBLEM,
            "a System V segment may have 32 MiB at most",
            "sysctl -w kernel.shmmax",
        ),
        (
            "shared memory",
            {"shmall_bytes": 1 << 30, "shm_segment_bytes": 900 << 20},
            Level.WARNING,
            "have 900 MiB of the 1024 they may have",
            "raise kernel.shmall",
        ),
        (
            "shared memory",
            {"shm_segments": 4000},
            Level.WARNING,
            "4000 of 4096 System V segments",
            "ipcrm",
        ),
        (
            "cma",
            {"ptrace_scope": 1},
            Level.NOTE,
            "kernel.yama.ptrace_scope is 1",
            "sysctl -w kernel.yama.ptrace_scope=0",
        ),
        (
            "cma",
            {"attach_error": "Operation not permitted"},
            Level.NOTE,
            "reading another process's memory fails: Operation not permitted",
            "SYS_PTRACE",
        ),
        (
            "cma",
            {"ptrace_scope": 2, "environment": {"PDBUS_DECODE_KV_LANES": "require:cma"}},
            Level.PROBLEM,
            "kernel.yama.ptrace_scope is 2",
            "SYS_PTRACE",
        ),
        (
            "rdma",
            {"rdma_devices": (), "environment": {"PDBUS_DECODE_KV_LANES": "require:rc,cuda_ipc"}},
            Level.PROBLEM,
            "no network card here can do RDMA",
            "--kv-lanes allow",
        ),
        ("rdma", {"rdma_devices": ()}, Level.NOTE, "between hosts KV takes tcp", ""),
        (
            "rdma",
            {"rdma_nodes": ()},
            Level.NOTE,
            "mlx5_0: the device files are not in this container",
            "/dev/infiniband",
        ),
        (
            "memlock",
            {"memlock_bytes": 8 << 20},
            Level.PROBLEM,
            "a process may lock 8 MiB",
            "--ulimit memlock=-1",
        ),
        ("files", {"files": 1024}, Level.WARNING, "may open 1024 files", "ulimit -n"),
    ],
)
def test_a_trouble_is_found_and_has_a_remedy(
    check: str, changes: dict[str, Any], level: Level, text: str, fix: str
) -> None:
    """The finding has its level, says what is wrong, and what to do."""
    (finding,) = [one for one in found(check, **changes) if one.level is not Level.OK]
    assert finding.level is level
    assert text in finding.text
    assert fix in finding.fix


def test_little_locked_memory_does_no_harm_without_rdma() -> None:
    """Shared memory and TCP lock nothing."""
    (finding,) = found("memlock", memlock_bytes=8 << 20, rdma_devices=())
    assert finding.level is Level.OK


def test_a_capability_overrules_the_rule_for_tracing() -> None:
    """Who has SYS_PTRACE may read any process's memory."""
    (finding,) = found("cma", ptrace_scope=1, may_ptrace=True)
    assert finding.level is Level.OK


def test_all_variables_that_lanes_set_are_pointed_out() -> None:
    """None that would be overlooked is missing from the list, and none is in it for nothing."""
    names = {
        name for lane in (Lane.SYSV, Lane.POSIX, Lane.TCP) for name in lane_options(lane, None)
    }
    assert {f"UCX_{name}" for name in names - {"TLS"}} == set(OWN_VARIABLES)
