"""The facts are read from where the kernel keeps them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ops.cli.doctor import Interface, gather_facts


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_host_is_read(tmp_path: Path) -> None:
    """Devices, rules and limits; variables of others stay out."""
    write(
        tmp_path,
        {
            "sys/class/net/lo/flags": "0x9\n",
            "sys/class/net/lo/type": "772\n",
            "sys/class/net/lo/mtu": "65536\n",
            "sys/class/net/ib0/flags": "0x1003\n",
            "sys/class/net/ib0/mtu": "4092\n",
            "sys/class/net/ib0/speed": "200000\n",
            "sys/class/net/ib0/device/infiniband/x": "",
            "sys/class/infiniband/mlx5_0/x": "",
            "dev/infiniband/uverbs0": "",
            "dev/infiniband/rdma_cm": "",
            "dev/shm/x": "",
            "proc/sys/kernel/yama/ptrace_scope": "1\n",
            "proc/sys/kernel/shmmax": "18446744073692774399\n",
            "proc/sys/kernel/shmmni": "4096\n",
            "proc/sys/kernel/shmall": "1000\n",
            "proc/sysvipc/shm": "key shmid perms size\n 0 1 600 5000\n 0 2 1600 70000\n",
            "proc/self/status": "Name:\tx\nCapEff:\t0000000000080000\n",
        },
    )
    facts = gather_facts({"UCX_TLS": "tcp", "HOME": "/h"}, tmp_path)
    assert facts.environment == {"UCX_TLS": "tcp"}
    assert facts.interface("lo") == Interface(name="lo", mtu=65536, loopback=True)
    assert facts.interface("ib0") == Interface(name="ib0", mtu=4092, speed_mbps=200_000, rdma=True)
    assert facts.rdma_devices == ("mlx5_0",)
    assert facts.rdma_nodes == ("uverbs0",)
    assert (facts.ptrace_scope, facts.may_ptrace) == (1, True)
    assert (facts.shmmni, facts.shm_segments) == (4096, 2)
    assert facts.shmall_bytes == 1000 * resource.getpagesize()
    assert facts.shm_segment_bytes == 75_000
    assert facts.shm_bytes > 0


def test_this_host_is_read() -> None:
    """On a real host there is a loopback device, and room for files."""
    facts = gather_facts(os.environ)
    loopback = facts.interface("lo")
    assert loopback is not None
    assert loopback.loopback
    assert facts.files > 0
    assert facts.shmmni > 0
