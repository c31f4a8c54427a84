"""What a host says of itself, as far as it matters for KV on its way: read once, then judged."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Facts", "Interface", "gather_facts"]

_UNLIMITED = resource.RLIM_INFINITY
_LOOPBACK = 772
"""ARPHRD_LOOPBACK, as /sys says it."""
_SEGMENT_SIZE = 3
"""Column of the kernel's list of segments."""
_SLEEP_S = "20"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network device."""

    name: str
    up: bool = True
    mtu: int = 1500
    loopback: bool = False
    virtual: bool = False
    """A bridge, a container's end, a dummy: anything without a device behind it."""
    speed_mbps: int | None = None
    rdma: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One host, or one container."""

    environment: Mapping[str, str]
    """Variables that begin with `UCX_` or `PDBUS_`."""
    interfaces: tuple[Interface, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    """Devices that the kernel knows."""
    rdma_nodes: tuple[str, ...] = ()
    """Device files that a process could open."""
    ptrace_scope: int | None = None
    """Yama's rule; None where there is no Yama."""
    may_ptrace: bool = False
    """Whether this process has CAP_SYS_PTRACE."""
    attach_error: str | None = None
    """Why one process could not read another's memory; None if it could."""
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    shmmax_bytes: int = 0
    shmall_bytes: int | None = None
    """Most bytes of all System V segments together; None where the kernel does not say."""
    shmmni: int = 0
    shm_segments: int = 0
    """System V segments in use."""
    shm_segment_bytes: int = 0
    """What they have in all."""
    memlock_bytes: int | None = None
    """None is without limit."""
    files: int = 0
    """Most open files of a process."""

    def interface(self, name: str) -> Interface | None:
        """Return a network device by its name."""
        return next((one for one in self.interfaces if one.name == name), None)


def gather_facts(environment: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Read what this host is.

    Args:
        environment: of this process.
        root: where /proc, /sys and /dev are.
    """
    shm = os.statvfs(root / "dev/shm")
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sysv = root / "proc/sys/kernel"
    pages, segments = _number(sysv / "shmall"), _segments(root / "proc/sysvipc/shm")
    return Facts(
        environment={
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(("UCX_", "PDBUS_"))
        },
        interfaces=_interfaces(root / "sys/class/net"),
        rdma_devices=_names(root / "sys/class/infiniband"),
        rdma_nodes=tuple(n for n in _names(root / "dev/infiniband") if n.startswith("uverbs")),
        ptrace_scope=_number(sysv / "yama/ptrace_scope"),
        may_ptrace=_may_ptrace(root / "proc/self/status"),
        attach_error=_attach_error(),
        shm_bytes=shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm.f_bavail * shm.f_frsize,
        shmmax_bytes=_number(sysv / "shmmax") or 0,
        shmall_bytes=None if pages is None else pages * resource.getpagesize(),
        shmmni=_number(sysv / "shmmni") or 0,
        shm_segments=len(segments),
        shm_segment_bytes=sum(segments),
        memlock_bytes=None if memlock == _UNLIMITED else memlock,
        files=files,
    )


def _segments(path: Path) -> list[int]:
    """Return the bytes of each System V segment."""
    return [int(line.split()[_SEGMENT_SIZE]) for line in _lines(path)[1:]]


def _interfaces(folder: Path) -> tuple[Interface, ...]:
    return tuple(_interface(folder / name) for name in _names(folder))


def _interface(folder: Path) -> Interface:
    flags = int(_text(folder / "flags") or "0", 16)
    speed = _number(folder / "speed")
    return Interface(
        name=folder.name,
        up=bool(flags & 1),
        mtu=_number(folder / "mtu") or 0,
        loopback=_number(folder / "type") == _LOOPBACK,
        virtual="/virtual/" in str(folder.resolve()),
        speed_mbps=speed if speed is not None and speed > 0 else None,
        rdma=(folder / "device/infiniband").exists(),
    )


def _may_ptrace(status: Path) -> bool:
    for line in _lines(status):
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 19 & 1)
    return False


def _attach_error() -> str | None:
    """Try to read the memory of a child, as UCX's cma lane reads that of a peer."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(8)
    mine = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    # Any mapped address will do: whether it may be read is asked before whether it is there.
    theirs = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    with subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep({_SLEEP_S})"], stdin=subprocess.DEVNULL
    ) as child:
        try:
            got = libc.process_vm_readv(child.pid, mine, 1, theirs, 1, 0)
            code = ctypes.get_errno()
        finally:
            child.kill()
    if got >= 0 or code == errno.EFAULT:
        return None
    return os.strerror(code)


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else ()


def _lines(file: Path) -> list[str]:
    return _text(file).splitlines()


def _number(file: Path) -> int | None:
    with suppress(ValueError):
        return int(_text(file))
    return None


def _text(file: Path) -> str:
    # A device that is down refuses to tell its speed; what is not there is not a fact.
    with suppress(OSError):
        return file.read_text(encoding="utf-8").strip()
    return ""
