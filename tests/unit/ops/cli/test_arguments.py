"""From options on the command line to the options of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import App

from libs.clock import SystemClock
from ops.cli.arguments import StackArguments, command_line
from ops.cli.errors import CommandError
from ops.cli.stack.layout import Address, ModelChoice, StackOptions, service_slots


def parse(*arguments: str) -> StackOptions:
    """Return what the program makes of arguments."""
    app = App()
    seen: list[StackOptions] = []

    @app.default
    def command(arguments: StackArguments | None = None) -> None:
        seen.append((arguments or StackArguments()).options())

    app(list(arguments), result_action="return_value")
    return seen[0]


def test_defaults() -> None:
    """Without options one of each service runs SmolLM2 with SGLang on port 8000."""
    options = parse()
    assert (options.prefill, options.decode, options.aggregated) == (1, 1, 0)
    assert (options.engine, options.model, options.port) == ("sglang", "smollm2", 8000)
    assert options.state_dir == Path.cwd() / ".pdbus"
    assert options.models_dir == (Path.cwd() / ".pdbus" / "models").resolve()


def test_scripted_engine_needs_no_weights() -> None:
    """The scripted engine takes the scripted model unless another one is named."""
    assert parse("--engine", "scripted").model == "scripted"
    assert parse("--engine", "scripted", "--model", "tiny").model == "tiny"


def test_options_survive_the_way_to_a_detached_supervisor(tmp_path: Path) -> None:
    """The command line made from options gives the same options again."""
    options = parse(
        *("--prefill=2", "--decode=3", "--engine=scripted", "--port=0", "--recover=any"),
        *("--grace=7.5", f"--state-dir={tmp_path}"),
        *("--tool-parser=hermes", "--reasoning-parser=qwen3"),
    )
    assert parse(*command_line(options)) == options


def test_a_local_folder_becomes_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services run in another folder, so a relative model folder is made absolute."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse("--model", "mine").model == str(tmp_path / "mine")


@pytest.mark.parametrize(
    "arguments",
    [("--prefill=0",), ("--decode=0",), ("--gateways=0",), ("--routers=0", "--aggregated=1")],
)
def test_stacks_that_cannot_answer_are_refused(arguments: tuple[str, ...]) -> None:
    """A stack without a way to answer is refused before anything starts."""
    with pytest.raises(CommandError, match="needs"):
        parse(*arguments)


@pytest.mark.parametrize("option", ["--tool-parser", "--reasoning-parser"])
def test_a_parser_that_does_not_exist_is_refused(option: str) -> None:
    """Before anything starts, with the names that there are."""
    with pytest.raises(CommandError, match=r"parser 'nosuch'; there are .*mistral"):
        parse(f"{option}=nosuch")


def test_parsers_are_told_to_those_that_answer(tmp_path: Path) -> None:
    """Decode and aggregated workers take answers apart; nobody else is told how."""
    slots = service_slots(
        parse("--aggregated=1", "--tool-parser=qwen25", "--reasoning-parser=qwen3"),
        ModelChoice("smollm2", tmp_path / "model"),
        Address("nats://127.0.0.1:1", (8000,)),
        SystemClock().entropy,
    )
    told = {
        slot.role
        for slot in slots
        if "--tool-parser qwen25 --reasoning-parser qwen3" in " ".join(slot.argv(4321))
    }
    assert told == {"decode", "aggregated"}
    others = [slot for slot in slots if slot.role not in told]
    assert not any("-parser" in " ".join(slot.argv(1)) for slot in others)


def test_policy_and_grace_reach_the_services(tmp_path: Path) -> None:
    """The recovery policy is told to gateways, the grace to everybody."""
    slots = service_slots(
        parse("--recover=greedy", "--grace=3"),
        ModelChoice("smollm2", tmp_path / "model"),
        Address("nats://127.0.0.1:1", (8000,)),
        SystemClock().entropy,
    )
    commands = {slot.role: " ".join(slot.argv(4321)) for slot in slots}
    assert "--recover greedy" in commands["gateway"]
    assert not any("--recover" in commands[role] for role in commands if role != "gateway")
    assert all("--drain-grace-s 3" in command for command in commands.values())


def test_lanes_are_told_to_those_that_move_kv(tmp_path: Path) -> None:
    """The policy reaches prefill and decode; without one their own settings stand."""
    for given, told in (("--kv-lanes=require:rc,cuda_ipc", True), ("--kv-lanes=allow", False)):
        slots = service_slots(
            parse(given),
            ModelChoice("smollm2", tmp_path / "model"),
            Address("nats://127.0.0.1:1", (8000,)),
            SystemClock().entropy,
        )
        commands = {slot.role: " ".join(slot.argv(4321)) for slot in slots}
        for role in ("prefill", "decode"):
            assert ("--kv-lanes require:rc,cuda_ipc" in commands[role]) == told
        assert not any("--kv-lanes" in commands[role] for role in ("gateway", "router", "cleanup"))


@pytest.mark.parametrize("policy", ["sysv,tcp", "require:tpc", "require", "allow:tcp"])
def test_a_policy_that_is_none_is_refused(policy: str) -> None:
    """Before anything starts, with the option's name."""
    with pytest.raises(CommandError, match="--kv-lanes: "):
        parse(f"--kv-lanes={policy}")


def test_aggregated_alone_is_a_stack() -> None:
    """Aggregated workers need no peers."""
    assert parse("--prefill=0", "--decode=0", "--aggregated=2").aggregated == 2


def test_slots_of_a_stack(tmp_path: Path) -> None:
    """Each service is a slot with its own identity; aggregated runs the decode service."""
    options = parse("--prefill=2", "--aggregated=1", "--cleanups=2", f"--state-dir={tmp_path}")
    slots = service_slots(
        options,
        ModelChoice("smollm2", tmp_path / "model"),
        Address("nats://127.0.0.1:1", (8000,)),
        SystemClock().entropy,
    )
    assert [slot.name for slot in slots] == [
        "prefill-0",
        "prefill-1",
        "decode-0",
        "aggregated-0",
        "gateway-0",
        "router-0",
        "cleanup-0",
        "cleanup-1",
    ]
    assert len({slot.instance for slot in slots}) == len(slots)
    commands = {slot.name: " ".join(slot.argv(4321)) for slot in slots}
    assert "services.decode" in commands["aggregated-0"]
    assert "--mode aggregated" in commands["aggregated-0"]
    assert "--mode disaggregated" in commands["decode-0"]
    assert "--port 8000" in commands["gateway-0"]
    assert all("--health-port 4321" in command for command in commands.values())
    assert all("--die-with-parent" in command for command in commands.values())
    assert all("--drain-grace-s 20.0" in command for command in commands.values())
    assert "--recover never" in commands["gateway-0"]
    assert all(slot.drained == {0, 3} for slot in slots)
    ranks = {slot.role: slot.stop_rank for slot in slots}
    assert ranks["gateway"] < ranks["router"] < ranks["prefill"] < ranks["cleanup"]
    assert ranks["prefill"] == ranks["decode"] == ranks["aggregated"]
