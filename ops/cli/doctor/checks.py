"""The checks of one host. Each is a pure function from the facts to what it has found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from libs.transfer.environment import excluded_lanes
from ops.cli.doctor.facts import Facts, Interface
from ops.cli.doctor.findings import Finding, Level
from proto.errors import PdbusError
from proto.kv import Lane

__all__ = ["HOST_CHECKS", "OWN_VARIABLES", "Check", "examine"]

Check = Callable[[Facts], Iterator[Finding]]

_SHM = "/dev/shm"  # noqa: S108 - told to people, not opened
_SHARED = "shared memory"
_MIB = 1 << 20
_GIB = 1 << 30
_SHM_LEAST = 256 * _MIB
_SHMMAX_LEAST = 64 * _MIB
_SEGMENTS_FREE = 256
"""A pair takes about twenty."""
_FILES_LEAST = 4096
_MEMLOCK_LEAST = 1 * _GIB
_MTU_PLAIN = 1500
_MTU_FAST = 9000
_FAST_MBPS = 25_000
_INTERFACES = ("PDBUS_PREFILL_KV_INTERFACE", "PDBUS_DECODE_KV_INTERFACE", "UCX_NET_DEVICES")
_POLICIES = ("PDBUS_PREFILL_KV_LANES", "PDBUS_DECODE_KV_LANES")
_RDMA = ("rc", "ib")
OWN_VARIABLES = (
    "UCX_RNDV_THRESH",
    "UCX_KEEPALIVE_INTERVAL",
    "UCX_MM_ERROR_HANDLING",
    *(f"UCX_{lane}_{size}_SIZE" for lane in ("SYSV", "POSIX") for size in ("SEG", "FIFO")),
    "UCX_TCP_TX_SEG_SIZE",
    "UCX_TCP_RX_SEG_SIZE",
)
"""What lanes set themselves, besides `UCX_TLS` and the network device."""


def examine(facts: Facts) -> list[Finding]:
    """Return what all checks of a host have found."""
    return [finding for check in HOST_CHECKS for finding in check(facts)]


def transports(facts: Facts) -> Iterator[Finding]:
    """`UCX_TLS`: names that there are not, lanes that it leaves out."""
    name, said = "transports", facts.environment.get("UCX_TLS", "")
    if not said:
        yield Finding(check=name, level=Level.OK, text="UCX_TLS is not set: all lanes may be used")
        return
    try:
        left_out = excluded_lanes((Lane.SYSV, Lane.TCP), facts.environment)
    except PdbusError as error:
        fix = "unset UCX_TLS, or name sysv and tcp in it: workers with this variable do not start"
        yield Finding(check=name, level=Level.PROBLEM, text=error.detail, fix=fix)
        return
    for lane, text in left_out.items():
        what = "other hosts" if lane is Lane.TCP else "this host"
        fix = f"unset UCX_TLS to reach peers on {what} by {lane}"
        yield Finding(check=name, level=Level.WARNING, text=text, fix=fix)
    if not left_out:
        yield Finding(check=name, level=Level.OK, text=f"UCX_TLS={said} leaves sysv and tcp")


def overlooked_variables(facts: Facts) -> Iterator[Finding]:
    """`UCX_` variables that pdbus sets itself, so that the operator's own have no effect."""
    for variable in OWN_VARIABLES:
        if variable in facts.environment:
            text = f"{variable} is set, and has no effect: each lane brings its own value"
            fix = f"unset {variable}"
            yield Finding(check="variables", level=Level.NOTE, text=text, fix=fix)


def interface(facts: Facts) -> Iterator[Finding]:
    """The network devices that KV over TCP is bound to."""
    named = {v: facts.environment[v] for v in _INTERFACES if facts.environment.get(v)}
    for variable, value in named.items():
        for device in value.split(","):
            yield _judge_device(facts, variable, device.strip())
    if named:
        return
    real = [one for one in facts.interfaces if one.up and not one.loopback]
    if len(real) > 1:
        listed = ", ".join(one.name for one in real)
        text = f"KV over TCP may take any of {listed}"
        fix = "set PDBUS_PREFILL_KV_INTERFACE and PDBUS_DECODE_KV_INTERFACE to the private one"
        yield Finding(check="interface", level=Level.WARNING, text=text, fix=fix)
    elif real:
        text = f"KV over TCP can only take {real[0].name}"
        yield Finding(check="interface", level=Level.OK, text=text)
    else:
        text = "no network device but loopback: other hosts cannot be reached"
        fix = "attach the container to a network that the peers share, if there are any elsewhere"
        yield Finding(check="interface", level=Level.WARNING, text=text, fix=fix)


def mtu(facts: Facts) -> Iterator[Finding]:
    """Sizes of frames: too small, unequal, or small on a fast link."""
    real = [one for one in facts.interfaces if one.up and not one.loopback]
    for one in real:
        if one.mtu < _MTU_PLAIN:
            text = f"{one.name} has an MTU of {one.mtu}: an overlay network or a tunnel"
            fix = "use the network below it for KV, or raise its MTU on all hosts"
            yield Finding(check="mtu", level=Level.WARNING, text=text, fix=fix)
        elif one.mtu < _MTU_FAST and (one.speed_mbps or 0) >= _FAST_MBPS:
            text = f"{one.name} does {one.speed_mbps} Mbit/s with an MTU of {one.mtu}"
            fix = f"set an MTU of {_MTU_FAST} on this device, on its peers and on the switch"
            yield Finding(check="mtu", level=Level.NOTE, text=text, fix=fix)
    if all(one.mtu >= _MTU_PLAIN for one in real):
        listed = ", ".join(f"{one.name} {one.mtu}" for one in real) or "no device"
        yield Finding(check="mtu", level=Level.OK, text=f"MTU: {listed}")


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Room for the sysv and posix lanes."""
    found = [*_shared_files(facts), *_segments(facts)]
    if not found:
        text = f"{_SHM} {facts.shm_free_bytes // _MIB} MiB free, System V segments within limits"
        found = [Finding(check=_SHARED, level=Level.OK, text=text)]
    yield from found


def _shared_files(facts: Facts) -> Iterator[Finding]:
    if facts.shm_bytes < _SHM_LEAST:
        text = f"{_SHM} has {facts.shm_bytes // _MIB} MiB"
        fix = "start the container with --shm-size=1g: the posix lane and SGLang need it"
        yield Finding(check=_SHARED, level=Level.PROBLEM, text=text, fix=fix)
    elif facts.shm_free_bytes < _SHM_LEAST:
        text = f"{_SHM} has {facts.shm_free_bytes // _MIB} MiB left of {facts.shm_bytes // _MIB}"
        fix = "remove what dead processes have left there, or make it larger"
        yield Finding(check=_SHARED, level=Level.WARNING, text=text, fix=fix)


def _segments(facts: Facts) -> Iterator[Finding]:
    if facts.shmmax_bytes < _SHMMAX_LEAST:
        text = f"a System V segment may have {facts.shmmax_bytes // _MIB} MiB at most"
        fix = "sysctl -w kernel.shmmax=68719476736: the sysv lane cannot be opened otherwise"
        yield Finding(check=_SHARED, level=Level.PROBLEM, text=text, fix=fix)
    whole, taken = facts.shmall_bytes, facts.shm_segment_bytes
    if whole is not None and whole - taken < _SHM_LEAST:
        text = f"System V segments have {taken // _MIB} MiB of the {whole // _MIB} they may have"
        fix = "raise kernel.shmall: without room for slabs KV on sysv is copied twice as often"
        yield Finding(check=_SHARED, level=Level.WARNING, text=text, fix=fix)
    if facts.shmmni - facts.shm_segments < _SEGMENTS_FREE:
        text = f"{facts.shm_segments} of {facts.shmmni} System V segments are in use"
        fix = "remove those of dead processes (ipcs -mp, ipcrm), or raise kernel.shmmni"
        yield Finding(check=_SHARED, level=Level.WARNING, text=text, fix=fix)


def other_memory(facts: Facts) -> Iterator[Finding]:
    """Whether one process may read another's memory: what the cma lane needs."""
    name = "cma"
    if facts.attach_error is None and (facts.may_ptrace or not facts.ptrace_scope):
        yield Finding(check=name, level=Level.OK, text="processes may read each other's memory")
        return
    if facts.attach_error is not None:
        text = f"reading another process's memory fails: {facts.attach_error}"
        fix = "add the capability SYS_PTRACE, or a seccomp profile that allows process_vm_readv"
    else:
        text = f"kernel.yama.ptrace_scope is {facts.ptrace_scope}: only descendants may be read"
        fix = "sysctl -w kernel.yama.ptrace_scope=0, or add the capability SYS_PTRACE"
    demanded = any("cma" in facts.environment.get(v, "") for v in (*_POLICIES, "UCX_TLS"))
    if demanded:
        yield Finding(check=name, level=Level.PROBLEM, text=text, fix=fix)
    else:
        # The lanes that pdbus opens by itself do without.
        yield Finding(check=name, level=Level.NOTE, text=f"{text}; sysv and tcp work", fix=fix)


def rdma(facts: Facts) -> Iterator[Finding]:
    """Network cards that can do RDMA, and whether it can be used."""
    demanded = any(_wants_rdma(facts.environment.get(v, "")) for v in (*_POLICIES, "UCX_TLS"))
    if facts.rdma_devices and not facts.rdma_nodes:
        text = f"{', '.join(facts.rdma_devices)}: the device files are not in this container"
        fix = "pass /dev/infiniband into the container"
        level = Level.PROBLEM if demanded else Level.NOTE
        yield Finding(check="rdma", level=level, text=text, fix=fix)
    elif facts.rdma_devices:
        text = f"RDMA devices: {', '.join(facts.rdma_devices)}"
        yield Finding(check="rdma", level=Level.OK, text=text)
    elif demanded:
        text = "an rc lane is demanded, and no network card here can do RDMA"
        fix = "allow tcp between hosts (`--kv-lanes allow`), or use hosts with RDMA cards"
        yield Finding(check="rdma", level=Level.PROBLEM, text=text, fix=fix)
    else:
        text = "no network card here can do RDMA: between hosts KV takes tcp"
        yield Finding(check="rdma", level=Level.NOTE, text=text)


def limits(facts: Facts) -> Iterator[Finding]:
    """Locked memory (for RDMA) and open files (for pairs)."""
    locked = facts.memlock_bytes
    if locked is not None and locked < _MEMLOCK_LEAST and facts.rdma_devices:
        text = f"a process may lock {locked // _MIB} MiB: RDMA cannot register its buffers"
        fix = "ulimit -l unlimited (containers: --ulimit memlock=-1)"
        yield Finding(check="memlock", level=Level.PROBLEM, text=text, fix=fix)
    else:
        amount = "any amount of memory" if locked is None else f"{locked // _MIB} MiB"
        text = f"a process may lock {amount}"
        yield Finding(check="memlock", level=Level.OK, text=text)
    if facts.files < _FILES_LEAST:
        text = f"a process may open {facts.files} files; each pair takes about ten"
        yield Finding(check="files", level=Level.WARNING, text=text, fix="ulimit -n 65536")


def _wants_rdma(said: str) -> bool:
    if said.startswith("^"):
        return False
    names = said.rpartition(":")[2].split(",")
    return any(name.strip().startswith(_RDMA) for name in names)


def _judge_device(facts: Facts, variable: str, value: str) -> Finding:
    # UCX names RDMA ports as device:port.
    name = value.partition(":")[0]
    device = facts.interface(name)
    if device is None and name not in facts.rdma_devices:
        known = ", ".join(one.name for one in facts.interfaces) or "none"
        text = f"{variable}={value}: there is no such device"
        fix = f"name one of: {known}"
        return Finding(check="interface", level=Level.PROBLEM, text=text, fix=fix)
    return _judge_known(variable, value, device)


def _judge_known(variable: str, value: str, device: Interface | None) -> Finding:
    said = f"{variable}={value}"
    if device is not None and not device.up:
        fix = f"ip link set {device.name} up"
        return Finding(check="interface", level=Level.PROBLEM, text=f"{said} is down", fix=fix)
    if device is not None and device.loopback:
        text = f"{said} is loopback: only this host can be reached, or peers reach themselves"
        fix = "name the device of the network that the workers share"
        return Finding(check="interface", level=Level.WARNING, text=text, fix=fix)
    if device is not None and device.virtual and device.name.startswith(("docker", "virbr")):
        text = f"{said} is a bridge that every host has with the same addresses"
        fix = "name the device of the network that the workers share"
        return Finding(check="interface", level=Level.WARNING, text=text, fix=fix)
    return Finding(check="interface", level=Level.OK, text=f"{said} is there and up")


HOST_CHECKS: tuple[Check, ...] = (
    transports,
    overlooked_variables,
    interface,
    mtu,
    shared_memory,
    other_memory,
    rdma,
    limits,
)
"""In the order in which they are shown."""
