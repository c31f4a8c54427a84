"""`pdbus run`: a stack, one question, its waterfall; then serve until Ctrl-C."""

from __future__ import annotations

import asyncio
import os

from rich.console import Console

from ops.cli.chat import KEY_VARIABLE, Answer, Question, ask
from ops.cli.stack.layout import StackOptions
from ops.cli.stack.record import StackRecord
from ops.cli.stack.serve import serve
from ops.cli.views.display import Display
from ops.cli.views.link import read_events
from ops.cli.views.trace import SETTLE_S, gather, request_id
from ops.cli.views.waterfall import build, render

__all__ = ["run"]

QUESTION = "What is the capital of France?"
MAX_TOKENS = 48


async def run(options: StackOptions, display: Display, console: Console, *, once: bool) -> None:
    """Start a stack, ask one question and show how it was answered.

    Raises:
        CommandError: the stack cannot start, or the question was not answered.
    """

    async def when_ready(record: StackRecord) -> bool:
        display.settle()
        display.say(f"ready: {' '.join(record.urls)}")
        await _demonstrate(record, console)
        if not once:
            console.print(
                f"\nserving at {record.urls[0]}/v1 until Ctrl-C", markup=False, highlight=False
            )
        return not once

    await serve(options, display, when_ready)


async def _demonstrate(record: StackRecord, console: Console) -> None:
    console.print(f"\n> {QUESTION}", markup=False, highlight=False)
    question = Question(
        url=record.urls[0],
        model=record.model,
        text=QUESTION,
        max_tokens=MAX_TOKENS,
        key=os.environ.get(KEY_VARIABLE),
    )
    rid = request_id(await asyncio.to_thread(_speak, question, console))
    events = await gather(read_events(record.nats_url), rid, settle_s=SETTLE_S)
    console.print()
    console.print(render(build(events), columns=console.width))


def _speak(question: Question, console: Console) -> str:
    answer = Answer()
    for piece in ask(question, answer):
        console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    return answer.rid
