"""The commands of `pdbus`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console

from ops.cli.arguments import STATE_DIR, StackArguments, command_line
from ops.cli.chat import KEY_VARIABLE, Answer, Question, ask
from ops.cli.errors import CommandError
from ops.cli.keys import make_keys_app
from ops.cli.network import NETWORK_COMMANDS
from ops.cli.operate import COMMANDS
from ops.cli.run import run as run_stack
from ops.cli.stack.record import running_stack
from ops.cli.up import bring_down, bring_up, bring_up_detached
from ops.cli.views.display import display_for
from ops.cli.views.link import fleet_of, read_events
from ops.cli.views.logs import last_lines
from ops.cli.views.screen import screen
from ops.cli.views.trace import gather, request_id
from ops.cli.views.waterfall import build, render
from ops.cli.views.workers import notes, table

__all__ = ["main", "make_app"]

Switch = Annotated[bool, Parameter(negative=())]

_INTERRUPTED = 130
_READER_LEFT = 141
_HELP = "Serve language models with prefill and decode in two pools, over NATS and UCX."


def main() -> None:
    """Run the program; the process ends with its exit code."""
    sys.exit(run_program(sys.argv[1:]))


def run_program(arguments: list[str]) -> int:
    """Run one command and return its exit code; expected failures are one line on stderr."""
    try:
        make_app()(arguments, result_action="return_zero")
    except CommandError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"pdbus: {error.text}", markup=False, highlight=False
        )
        return error.code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has enough; Python must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_LEFT
    return 0


def make_app() -> App:
    """Return the program with all its commands."""
    app = App(name="pdbus", help=_HELP, version_flags=())
    for command in (up, down, run, chat, workers, *COMMANDS, *NETWORK_COMMANDS, trace, logs):
        app.command(command)
    app.command(make_keys_app())
    return app


def up(arguments: StackArguments | None = None, *, detach: Switch = False) -> None:
    """Start a stack and keep it running until Ctrl-C.

    Args:
        detach: keep it running in the background, and return when it is ready.
    """
    options = (arguments or StackArguments()).options()
    display = display_for(Console())
    if detach:
        bring_up_detached(options, command_line(options), display)
    else:
        asyncio.run(bring_up(options, display))


def down(*, state_dir: Path = STATE_DIR) -> None:
    """Stop the stack that runs in a state folder."""
    bring_down(state_dir.resolve(), display_for(Console()))


def run(arguments: StackArguments | None = None, *, once: Switch = False) -> None:
    """Start a stack, ask it one question, show how it was answered, and serve until Ctrl-C.

    Args:
        once: end after the answer.
    """
    options = (arguments or StackArguments()).options()
    console = Console()
    asyncio.run(run_stack(options, display_for(console), console, once=once))


def chat(  # noqa: PLR0913 - one argument an option
    text: str,
    *,
    max_tokens: int = 128,
    temperature: float = 0.0,
    stream: bool = True,
    model: str | None = None,
    url: str | None = None,
    key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None,
    state_dir: Path = STATE_DIR,
) -> None:
    """Ask one question and print the answer as it comes.

    Args:
        text: the question.
        max_tokens: longest answer.
        temperature: 0 is deterministic.
        stream: print token by token; the other way waits for the whole answer.
        model: default: the model of the stack.
        url: base address of a gateway; default: that of the stack.
        key: API key, where the gateway asks for one.
        state_dir: where the stack lives.
    """
    if url is None or model is None:
        record = running_stack(state_dir.resolve())
        url, model = url or record.urls[0], model or record.model
    question = Question(
        url=url,
        model=model,
        text=text,
        max_tokens=max_tokens,
        temperature=temperature,
        stream=stream,
        key=key,
    )
    answer = Answer()
    for piece in ask(question, answer):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    Console(stderr=True).print(f"request {answer.rid}", style="bright_black", highlight=False)


def workers(*, json: Switch = False, nats: str | None = None, state_dir: Path = STATE_DIR) -> None:
    """List every process that is alive on the bus.

    Args:
        json: one JSON object a line.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    beats = asyncio.run(fleet_of(nats or running_stack(state_dir.resolve()).nats_url))
    if json:
        for beat in beats:
            sys.stdout.write(msgspec.json.encode(beat).decode() + "\n")
    else:
        screen().print(table(beats))
        for note in notes(beats):
            screen().print(note, markup=False, highlight=False, soft_wrap=True)


def trace(
    request: str, *, json: Switch = False, nats: str | None = None, state_dir: Path = STATE_DIR
) -> None:
    """Show the stages of one request.

    Args:
        request: its id, or the id of its answer (`chatcmpl-…`).
        json: one JSON object a line and event.
        nats: address of the bus; default: that of the stack.
        state_dir: where the stack lives.
    """
    rid = request_id(request)
    url = nats or running_stack(state_dir.resolve()).nats_url
    events = asyncio.run(gather(read_events(url), rid, settle_s=0))
    if json:
        for event in events:
            sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    else:
        console = Console()
        console.print(render(build(events), columns=console.width))


def logs(service: str | None = None, *, lines: int = 20, state_dir: Path = STATE_DIR) -> None:
    """Print the last lines of the logs.

    Args:
        service: a process (`decode-0`) or a role (`decode`); default: all.
        lines: how many of each.
        state_dir: where the stack lives.
    """
    for line in last_lines(state_dir.resolve() / "logs", service, lines):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
