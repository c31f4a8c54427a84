"""A gateway's HTTP side on a real port, with calls behind it that answer at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.clock.system import SystemClock
from libs.text import ModelText
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.output import CallDelta, Details, TokenLogprob
from proto.workers import Feature
from services.gateway.api import Delta, ServedModel
from services.gateway.edge import EdgeServer
from services.gateway.openai import Texts
from services.gateway.routes import Identity, http_app
from tests.unit.services.gateway.rig import (
    MODEL,
    ScriptedCalls,
    ScriptedLive,
    StillFleet,
    rules,
    toy_text,
)

__all__ = ["served"]

_ID = (5).to_bytes(4, "little")
_TEXTS = ("Plain", " text", " \U0001f468\u200d\U0001f469", "\n\ndata: [DONE]\n\n", '"\\u0000"')
_LIMIT_S = 10.0
_CONTEXT = 1 << 31


async def _answer(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
    """Say what the request lets a model say: text, reasoning, calls, log-probabilities."""
    call = live.call
    digest = int(call.digest[:8], 16)
    parsing = call.parsing
    count = call.sampling.logprobs
    if parsing is not None and parsing.reasoning:
        yield Delta(b"", "", details=Details(reasoning="So."))
    finish = FinishReason.LENGTH if digest % 3 else FinishReason.STOP
    if parsing is not None and parsing.tools and digest % 2:
        finish = FinishReason.TOOL_CALLS
        for index in range(1 + digest % 4 // 2):
            for piece in (
                CallDelta(index=index, id=f"call_{index}", name="f"),
                CallDelta(index=index, arguments="{}"),
            ):
                yield Delta(b"", "", details=Details(calls=(piece,)))
    words = _TEXTS[: 1 + digest % len(_TEXTS)]
    for text in words:
        details = None
        if count is not None:
            top = tuple((token, -1.0 - token) for token in range(count))
            details = Details(logprobs=(TokenLogprob(token=5, logprob=-1.0, top=top),))
        yield Delta(_ID, text, details=details)
    usage = Usage(prompt_tokens=call.prompt_tokens, completion_tokens=len(words), cached_tokens=0)
    yield Delta(b"", "", finish, usage)


def _roomy(folder: Path) -> ModelText:
    """Return a model into whose context the prompts of most cases fit."""
    toy_text(folder)
    config = {"max_position_embeddings": _CONTEXT, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelText.load(folder)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve for the length of the context; give the address.

    Args:
        folder: an empty one, for the model.
    """
    text = _roomy(folder)
    fleet = StillFleet(served=(ServedModel(MODEL, 0, features=frozenset(Feature)),))
    app = http_app(
        calls=ScriptedCalls(script=_answer),
        fleet=fleet,
        texts=Texts({MODEL: text}, fleet),
        clock=SystemClock(),
        rules=rules(max_body_bytes=4 << 20),
        identity=Identity("gateway-1", "1"),
    )
    ready, over = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        server = EdgeServer(app, host="127.0.0.1", port=0)
        running = asyncio.ensure_future(server.serve())
        ports.append(server.port)
        ready.set()
        await asyncio.to_thread(over.wait)
        await server.stop(1.0)
        await running

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(_LIMIT_S)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        over.set()
        thread.join(_LIMIT_S)
        assert not thread.is_alive()
