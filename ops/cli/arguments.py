"""The options that describe a stack, as the user writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from libs.engine.parse import check_names
from ops.cli.errors import CommandError
from ops.cli.stack.layout import GRACE_S, StackOptions
from proto.pairs import LanePolicy

__all__ = ["STATE_DIR", "StackArguments", "command_line"]

STATE_DIR = Path(".pdbus")

_Count = Annotated[int, Parameter(validator=Number(gte=0, lte=64))]
_DEFAULT_MODELS = {"sglang": "smollm2", "scripted": "scripted"}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StackArguments:
    """What `up` and `run` take."""

    prefill: _Count = 1
    """Number of prefill workers."""
    decode: _Count = 1
    """Number of decode workers."""
    aggregated: _Count = 0
    """Number of workers that do both and need no peer."""
    gateways: _Count = 1
    """Number of gateways, on consecutive ports."""
    workers: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 1
    """Number of processes of each gateway, on one port."""
    keys: Path | None = None
    """File with API keys (`pdbus keys add` makes one); without it no key is asked for."""
    routers: _Count = 1
    """Number of routers."""
    cleanups: _Count = 1
    """Number of cleanup processes; one of them acts."""
    engine: Literal["sglang", "scripted"] = "sglang"
    """What runs the model; `scripted` needs no weights and answers nonsense, fast."""
    model: str | None = None
    """smollm2, tiny, scripted, a local folder, or a hub id."""
    tool_parser: str = ""
    """Format in which the model writes tool calls, by SGLang's name, as qwen25 or hermes."""
    reasoning_parser: str = ""
    """Format in which the model writes its reasoning, by SGLang's name, as qwen3."""
    recover: Literal["never", "greedy", "any"] = "never"
    """Whether an answer whose decode was lost goes on with another one: never; only where the next
    token does not depend on chance; or always where it can be right."""
    kv_lanes: str = "allow"
    """Which lanes KV may take between workers: `require:sysv,tcp` refuses a pair on any other one
    before KV moves, `warn:sysv` points it out, `allow` takes what there is."""
    grace: Annotated[float, Parameter(validator=Number(gte=0, lte=3600))] = GRACE_S
    """Seconds that running requests may take once their process is told to end."""
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000
    """Port of the first gateway on 127.0.0.1; 0 takes a free one."""
    state_dir: Path = STATE_DIR
    """Where logs, the message store and the record of the stack are kept."""
    models_dir: Path | None = None
    """Where prepared models are kept; default: `models` in the state folder."""

    def options(self) -> StackOptions:
        """Return the options with all defaults filled in and all paths absolute.

        Raises:
            CommandError: no worker set can answer a request, or there is no such parser.
        """
        try:
            check_names(self.tool_parser, self.reasoning_parser)
        except ValueError as error:
            raise CommandError(str(error)) from error
        if not self.aggregated and not (self.prefill and self.decode):
            message = "a stack needs a prefill and a decode worker, or an aggregated one"
            raise CommandError(message)
        if not self.gateways or not self.routers:
            message = "a stack needs at least one gateway and one router"
            raise CommandError(message)
        state_dir = self.state_dir.expanduser().resolve()
        model = self.model or _DEFAULT_MODELS[self.engine]
        local = Path(model).expanduser()
        return StackOptions(
            state_dir=state_dir,
            models_dir=(self.models_dir or state_dir / "models").expanduser().resolve(),
            prefill=self.prefill,
            decode=self.decode,
            aggregated=self.aggregated,
            gateways=self.gateways,
            workers=self.workers,
            keys=self.keys and self.keys.expanduser().resolve(),
            routers=self.routers,
            cleanups=self.cleanups,
            engine=self.engine,
            model=str(local.resolve()) if local.is_dir() else model,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            recover=self.recover,
            kv_lanes=_policy(self.kv_lanes),
            grace_s=self.grace,
            port=self.port,
        )


def _policy(text: str) -> str:
    try:
        return str(LanePolicy.parse(text))
    except ValueError as error:
        raise CommandError(f"--kv-lanes: {error}") from error


def command_line(options: StackOptions) -> list[str]:
    """Return arguments of `pdbus up` that give the same options again."""
    values = {
        "prefill": options.prefill,
        "decode": options.decode,
        "aggregated": options.aggregated,
        "gateways": options.gateways,
        "workers": options.workers,
        "routers": options.routers,
        "cleanups": options.cleanups,
        "engine": options.engine,
        "model": options.model,
        "tool-parser": options.tool_parser,
        "reasoning-parser": options.reasoning_parser,
        "recover": options.recover,
        "kv-lanes": options.kv_lanes,
        "grace": options.grace_s,
        "port": options.port,
        "state-dir": options.state_dir,
        "models-dir": options.models_dir,
    }
    if options.keys is not None:
        values["keys"] = options.keys
    return [f"--{name}={value}" for name, value in values.items()]
