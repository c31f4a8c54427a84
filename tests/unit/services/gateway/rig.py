"""Stand-ins around the HTTP side: scripted calls, a fleet, a model, and a client on bare ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.clock.system import SystemClock
from libs.models.vocabulary import CHATML, byte_vocabulary, write_tokenizer
from libs.text import ModelText
from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ids import Incarnation, InstanceId, Room
from proto.ledger import Mode, Placement, Usage
from proto.workers import Feature, Role, WorkerRef
from services.gateway.api import Call, Delta, Readiness, ServedModel
from services.gateway.openai import CallRules, EdgeRules, Texts
from services.gateway.routes import Identity, http_app
from tests.support.checked.answers import AnswerCheck

MODEL = "toy"
CONTEXT = 256
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ABLE = ServedModel(MODEL, 0, features=frozenset(Feature))
"""The model of workers that can do everything."""

Script = Callable[["ScriptedLive"], AsyncGenerator[Delta, None]]


def words(*texts: str, finish: FinishReason = FinishReason.STOP, cached: int = 0) -> Script:
    """Answer with one delta a text, the last one with the finish."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        usage = Usage(
            prompt_tokens=live.call.prompt_tokens,
            completion_tokens=len(texts),
            cached_tokens=cached,
        )
        for text in texts[:-1]:
            yield Delta(b"\0\0\0\0", text)
        yield Delta(b"\0\0\0\0", texts[-1], finish, usage)

    return script


def deltas(*given: Delta, finish: FinishReason = FinishReason.STOP, reasoning: int = 0) -> Script:
    """Answer with these deltas and a finish."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        for delta in given:
            yield delta
        tokens = sum(len(delta.ids) // 4 for delta in given)
        usage = Usage(
            prompt_tokens=live.call.prompt_tokens,
            completion_tokens=tokens,
            reasoning_tokens=reasoning,
        )
        yield Delta(b"", "", finish, usage)

    return script


def then_fail(error: PdbusError, *texts: str) -> Script:
    """Give some texts and fail."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        for text in texts:
            yield Delta(b"\0\0\0\0", text)
        raise error

    return script


def then_hang(*texts: str) -> Script:
    """Give some texts and say nothing more."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        for text in texts:
            yield Delta(b"\0\0\0\0", text)
        live.hanging.set()
        await asyncio.Event().wait()

    return script


class ScriptedLive:
    """A call that follows a script."""

    def __init__(self, call: Call, script: Script, *, pending: bool) -> None:
        self.call = call
        self.rid = call.rid
        self.pending = pending
        self.created_ms = 5_000
        self.cancels: list[str] = []
        self.hanging = asyncio.Event()
        self._script = script
        self.placement = Placement(
            attempt=1,
            mode=Mode.DISAGGREGATED,
            decode=worker(Role.DECODE, "decode-1"),
            prefill=worker(Role.PREFILL, "prefill-1"),
            room=Room(7),
            compat="c",
        )

    async def deltas(
        self, offer: Callable[[Delta], bool] | None = None
    ) -> AsyncGenerator[Delta, None]:
        async with aclosing(self._script(self)) as script:
            async for delta in script:
                # Where something is pending, whoever reads does not wait.
                if offer is None or self.pending or not offer(delta):
                    yield delta

    async def cancel(self, reason: str) -> None:
        self.cancels.append(reason)


def worker(role: Role, instance: str) -> WorkerRef:
    """Return some worker."""
    return WorkerRef(role=role, instance=InstanceId(instance), incarnation=Incarnation("f" * 16))


@dataclass
class ScriptedCalls:
    """Opens calls that follow `script`; remembers them all."""

    script: Script = field(default_factory=lambda: words("Hello", " world"))
    refuse: PdbusError | None = None
    hang_in_open: bool = False
    pending: bool = False
    opened: list[Call] = field(default_factory=list)
    known: list[bool] = field(default_factory=list)
    """Whether the ids of each prompt were known when its call was opened."""
    lives: list[ScriptedLive] = field(default_factory=list)
    cancelled_opens: int = 0

    async def open(self, call: Call) -> ScriptedLive:
        self.opened.append(call)
        self.known.append(call.prompt.known)
        if self.refuse is not None:
            raise self.refuse
        if self.hang_in_open:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled_opens += 1
                raise
        live = ScriptedLive(call, self.script, pending=self.pending)
        self.lives.append(live)
        return live


@dataclass
class StillFleet:
    """A fleet that is as it is told to be."""

    state: Readiness = field(default_factory=lambda: Readiness(ok=True))
    served: tuple[ServedModel, ...] = (ServedModel(MODEL, 0),)

    def readiness(self) -> Readiness:
        return self.state

    def models(self) -> tuple[ServedModel, ...]:
        return self.served


def toy_text(folder: Path) -> ModelText:
    """Return a model whose tokens are bytes."""
    write_tokenizer(folder, byte_vocabulary())
    # It takes tools and does not show them: the context of a test is short.
    (folder / "chat_template.jinja").write_text("{% set seen = tools %}" + CHATML)
    config = {"max_position_embeddings": CONTEXT, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelText.load(folder)


def rules(**changes: Any) -> EdgeRules:
    """Return rules that suit tests."""
    values: dict[str, Any] = {
        "max_body_bytes": 64_000,
        "body_timeout_s": 5.0,
        "ping_s": 15.0,
        "slow_client_s": 30.0,
        "expose_placement": True,
        "call": CallRules(request_timeout_s=600.0, default_max_tokens=64),
    }
    return EdgeRules(**(values | changes))


@dataclass
class Reply:
    """What a client got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    writes: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        return events_of(self.body)


def events_of(body: bytes) -> list[Any]:
    """Return the data of all events as JSON; `[DONE]` as that text. Comments are skipped."""
    assert body.endswith(b"\n\n")
    found: list[Any] = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        if event.startswith(":"):
            continue
        assert "\n" not in event
        data = event.removeprefix("data: ")
        assert data != event
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


class Visit:
    """One request on bare ASGI, with a client that can leave or stop reading."""

    def __init__(self, app: Any, method: str, path: str, body: bytes, headers: dict[str, str]):
        self.reply = Reply()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        self.reading = asyncio.Event()
        self.reading.set()
        self.wrote = asyncio.Event()
        self._app = app
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

    def leave(self) -> None:
        """Close the connection."""
        self._messages.put_nowait({"type": "http.disconnect"})

    async def run(self) -> Reply:
        """Let the app answer."""
        async with asyncio.timeout(10):
            await self._app(self.scope, self._receive, self._send)
        reply, check = self.reply, AnswerCheck(self.scope["path"])
        kind = reply.headers.get("content-type", "")
        check.feed(reply.status, kind, reply.body, whole=reply.ended)
        return reply

    async def _receive(self) -> dict[str, Any]:
        return await self._messages.get()

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            assert not self.reply.status
            self.reply.status = message["status"]
            self.reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        assert self.reply.status
        assert not self.reply.ended
        if message.get("body"):
            self.reply.writes.append(message["body"])
        self.wrote.set()
        if not message.get("more_body", False):
            self.reply.ended = True
            # As uvicorn does, though the client may still be there.
            self._messages.put_nowait({"type": "http.disconnect"})


@dataclass
class Rig:
    """A gateway's HTTP side with stand-ins behind it."""

    calls: ScriptedCalls
    fleet: StillFleet
    text: ModelText
    rules: EdgeRules = field(default_factory=rules)

    def visit(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Visit:
        """Return a request that has not been answered yet."""
        app = http_app(
            calls=self.calls,
            fleet=self.fleet,
            texts=Texts({MODEL: self.text}, self.fleet),
            clock=SystemClock(),
            rules=self.rules,
            identity=Identity("gateway-1", "1.2.3"),
        )
        return Visit(app, method, path, body, headers or {})

    def post(self, body: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Visit:
        """Return a chat request; `fields` change the smallest valid body."""
        if not isinstance(body, bytes):
            body = json.dumps(chat_body(**fields) if body is None else body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        return self.visit("POST", CHAT, body, given)

    async def complete(self, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
        """Return the answer to a completion request; `fields` change the smallest valid body."""
        body = {"model": MODEL, "prompt": "Once"} | fields
        given = {"content-type": "application/json", **(headers or {})}
        return await self.visit("POST", COMPLETIONS, json.dumps(body).encode(), given).run()

    async def ask(self, body: Any = None, **fields: Any) -> Reply:
        """Return the answer to a chat request."""
        return await self.post(body, **fields).run()

    async def get(self, path: str, **headers: str) -> Reply:
        """Return the answer to a GET."""
        return await self.visit("GET", path, headers=headers).run()


def chat_body(**fields: Any) -> dict[str, Any]:
    """Return the smallest valid body with changes; a field that is `...` is left out."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | fields
    return {name: value for name, value in body.items() if value is not ...}
