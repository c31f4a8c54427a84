"""Which processes a stack has, and with which arguments each one starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.lifecycle.process import EXIT_GRACE
from ops.cli.stack.probe import Check, http_ready
from proto.ids import Entropy, InstanceId, new_instance
from proto.workers import Role

__all__ = ["Address", "ModelChoice", "SlotSpec", "StackOptions", "service_slots"]

HOST = "127.0.0.1"

GRACE_S = 20.0
"""How long requests may go on after the order to stop, where the user does not say."""

_DRAINED = frozenset({0, EXIT_GRACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What the user asked for."""

    state_dir: Path
    models_dir: Path
    """Where prepared models are kept; several stacks may share it."""
    prefill: int = 1
    decode: int = 1
    aggregated: int = 0
    gateways: int = 1
    workers: int = 1
    """Processes of each gateway."""
    keys: Path | None = None
    """File with API keys; None asks for none."""
    routers: int = 1
    cleanups: int = 1
    engine: str = "sglang"
    model: str = "smollm2"
    tool_parser: str = ""
    """Format of the model's tool calls, by SGLang's name."""
    reasoning_parser: str = ""
    """Format of the model's reasoning, by SGLang's name."""
    recover: str = "never"
    """Whether an answer may go on with another decode after its first token."""
    kv_lanes: str = "allow"
    """Which lanes KV may take between workers."""
    grace_s: float = GRACE_S
    """How long requests may go on once their process was told to end."""
    port: int = 8000
    """Of the first gateway; the others follow. 0 takes free ones."""

    @property
    def log_dir(self) -> Path:
        """Where each process writes its log."""
        return self.state_dir / "logs"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that is on disk and ready to be loaded."""

    name: str
    """As clients name it."""
    path: Path


@dataclass(frozen=True, slots=True)
class Address:
    """Where the shared parts of a stack listen."""

    nats_url: str
    gateway_ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One process that is to be kept alive."""

    name: str
    role: str
    instance: str
    stop_rank: int
    """Processes of a lower rank are stopped before those of a higher one."""
    argv: Callable[[int], Sequence[str]]
    """Makes the command line for a health port."""
    check: Check
    port: int | None = None
    """A fixed health port; None takes a free one at each start."""
    drained: frozenset[int] = frozenset()
    """Exit codes of a process that was asked to end, by whomever: no other one is started."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that it has beside ours."""
    timer_slack_ns: int = 0
    """How late its timers may be; 0 leaves that to the system."""


def service_slots(
    options: StackOptions, model: ModelChoice, address: Address, entropy: Entropy
) -> list[SlotSpec]:
    """Return the services of a stack; those that take longest to start come first."""
    return list(_services(options, model, address, entropy))


def _services(
    options: StackOptions, model: ModelChoice, address: Address, entropy: Entropy
) -> Iterator[SlotSpec]:
    named = ("--model", model.name, "--model-path", str(model.path))
    shared = ("--workers", str(options.workers), "--limit-share", str(options.gateways))
    keys = () if options.keys is None else ("--keys", str(options.keys))
    edge = ("--host", HOST, "--recover", options.recover, *shared, *keys, *named)
    engine = ("--engine", options.engine, *named)
    if options.kv_lanes != "allow":
        engine = (*engine, "--kv-lanes", options.kv_lanes)
    answering = (*engine, *_parsers(options))

    def slot(role: Role, number: int, rank: int, args: Sequence[str]) -> SlotSpec:
        # An aggregated worker is a decode service that needs no prefill.
        service = Role.DECODE if role is Role.AGGREGATED else role
        instance = new_instance(service, entropy)
        argv = _command(service, instance, address.nats_url, options, args)
        name = f"{role}-{number}"
        return SlotSpec(name, role, instance, rank, argv, http_ready, drained=_DRAINED)

    for number in range(options.prefill):
        yield slot(Role.PREFILL, number, 2, engine)
    for number in range(options.decode):
        yield slot(Role.DECODE, number, 2, (*answering, "--mode", "disaggregated"))
    for number in range(options.aggregated):
        yield slot(Role.AGGREGATED, number, 2, (*answering, "--mode", "aggregated"))
    for number, port in enumerate(address.gateway_ports):
        yield slot(Role.GATEWAY, number, 0, (*edge, "--port", str(port)))
    for number in range(options.routers):
        yield slot(Role.ROUTER, number, 1, ())
    for number in range(options.cleanups):
        yield slot(Role.CLEANUP, number, 3, ())


def _parsers(options: StackOptions) -> Iterator[str]:
    if options.tool_parser:
        yield from ("--tool-parser", options.tool_parser)
    if options.reasoning_parser:
        yield from ("--reasoning-parser", options.reasoning_parser)


def _command(
    service: Role,
    instance: InstanceId,
    nats_url: str,
    options: StackOptions,
    args: Sequence[str],
) -> Callable[[int], Sequence[str]]:
    def command(health_port: int) -> Sequence[str]:
        return (
            sys.executable,
            "-m",
            f"services.{service}",
            "--nats",
            nats_url,
            "--instance",
            instance,
            "--health-port",
            str(health_port),
            "--state-dir",
            str(options.state_dir),
            "--drain-grace-s",
            str(options.grace_s),
            "--die-with-parent",
            *args,
        )

    return command
