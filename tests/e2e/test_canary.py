"""What people write stays between them and the model: no text in logs, traces, events, ledger.

Requests of all fates carry a random word. The engine echoes, so answers carry it as well. Then
everything that the stack has written anywhere is searched for it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StorageType
from tokenizers import Tokenizer

from tests.support.http_client import Exchange, Reply, chat_body, get, post
from tests.support.otlp import collecting
from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

SERVICES = ("gateway", "router", "prefill", "decode", "cleanup")
TOO_LONG = 9000
RESULTS = "KV_PDBUS_RESULTS"

PREFILL_FAULTS = [
    {"when": "prefill", "action": "error", "text": "prefill fails"},
    {"when": "transfer", "action": "error", "text": "lost on the way"},
]
DECODE_FAULTS = [
    # Slow, so that the first tokens are said before it fails: they wait for the claim.
    {"when": "decode", "action": "slow", "seconds": 0.005, "text": "decode fails"},
    {"when": "decode", "action": "error", "text": "decode fails", "after_tokens": 50},
    {"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"},
]


KNOWN = {
    "logs": b"",
    "streams": b"",
    "store files": b"",
    "spans": b"",
    "state folder": b"supervisor",
    "metrics": b"scripted",
    "service api": b"decode-",
}
"""Where text could be, and what is there in any case; nothing stands for the id of a request."""


@dataclass(slots=True)
class Scene:
    """A word, what was said with it, and what the stack has written."""

    word: str = field(default_factory=lambda: f"canary{secrets.token_hex(6)}")
    rids: list[str] = field(default_factory=list[str])
    answers: list[Reply] = field(default_factory=list[Reply])
    kept: list[Reply] = field(default_factory=list[Reply])
    failures: list[Reply] = field(default_factory=list[Reply])
    refusals: list[Reply] = field(default_factory=list[Reply])
    written: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """All that was written, by where."""
    tokens: bytes = b""
    """The word as token ids, as it stands in messages."""

    def ask(self, text: str, **fields: Any) -> dict[str, Any]:
        """Return a body that has the word in prompt and stop strings."""
        stop = [f"no{self.word}", f"{self.word}never"]
        prompt = f"{text} {self.word} and then something more"
        return chat_body(prompt, stop=stop, max_tokens=200) | fields


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Play all requests on one stack at the finest log level, and stop it."""
    folder = tmp_path_factory.mktemp("stack")
    played = Scene()
    with collecting() as collector:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "PDBUS_PREFILL_SCRIPT": json.dumps({"answer": "echo", "faults": PREFILL_FAULTS}),
            "PDBUS_DECODE_SCRIPT": json.dumps({"answer": "echo", "faults": DECODE_FAULTS}),
        }
        env |= {f"PDBUS_{name.upper()}_LOG_LEVEL": "debug" for name in SERVICES}
        with run_stack(folder, env=env) as stack:
            asyncio.run(play(played, stack))
            asyncio.run(watch(played, stack))
        played.written["spans"] = b"".join(collector.raw)
        played.written["logs"] = files(folder / "logs") + files(folder, "*.log")
        played.written["store files"] = files(folder / "nats")
        played.written["state folder"] = files(folder, "*")
        tokenizer = Tokenizer.from_file(str(next(folder.glob("models/**/tokenizer.json"))))
        ids = tokenizer.encode(played.word, add_special_tokens=False).ids
        played.tokens = struct.pack(f"<{len(ids)}I", *ids)
    return played


async def play(scene: Scene, stack: RunningStack) -> None:
    """Send requests that end in every way."""
    port = stack.port
    for stream in (True, False):
        reply = await post(port, scene.ask("Say it again:", stream=stream))
        scene.answers.append(reply)
        stopped = scene.ask("Stop at", stream=stream, stop=[scene.word[-5:]])
        scene.answers.append(await post(port, stopped))
        for text in ("prefill fails", "decode fails", "lost on the way"):
            scene.failures.append(await post(port, scene.ask(text, stream=stream)))
        keyed = scene.ask("Keep it:", stream=stream)
        key = {"idempotency-key": f"key-{stream}"}
        # The second one is answered from what was kept of the first.
        scene.kept += [await post(port, keyed, headers=key) for _ in range(2)]
        exchange = await Exchange.open(
            port,
            "POST",
            "/v1/chat/completions",
            json.dumps(scene.ask("slow answer", stream=stream)).encode(),
        )
        if stream:
            # A letter of the echo.
            await exchange.until(b'"content":"s"')
        else:
            await asyncio.sleep(0.2)
        exchange.hang_up()
    for body in bad_bodies(scene):
        scene.refusals.append(await post(port, body))
    everything = [*scene.answers, *scene.kept, *scene.failures, *scene.refusals]
    scene.rids = [reply.rid for reply in everything]


def bad_bodies(scene: Scene) -> Iterator[Any]:
    """Yield bodies that are refused, each with the word in it."""
    word, good = scene.word, scene.ask("A bad one:")
    yield json.dumps(good).encode()[:-20]
    yield json.dumps(good).encode().replace(b'"temperature": 0', b'"temperature": NaN')
    yield f'{{"model": "scripted", "{word}'.encode()
    yield word.encode()
    yield json.dumps(good).encode().replace(word.encode(), word.encode() + b"\xff")
    yield good | {"messages": word}
    yield good | {"messages": [{"role": word, "content": word}]}
    yield good | {"messages": [{"role": "user", "content": [{"type": word, "text": word}]}]}
    yield good | {"messages": [{"role": "user", "content": word, word: word}]}
    yield good | {"model": word}
    yield good | {"temperature": word}
    yield good | {"stop": [word] * 20}
    yield good | {"stop": {word: word}}
    yield good | {"max_tokens": word}
    yield good | {"tools": [{"type": "function", "function": {"name": word}}]}
    yield good | {word: word}
    yield scene.ask("long " * TOO_LONG)
    yield scene.ask("much", max_tokens=TOO_LONG)


async def watch(scene: Scene, stack: RunningStack) -> None:
    """Read what only a running stack tells: streams, metrics, and its own listings."""
    await asyncio.sleep(1.5)
    ports = [slot.health_port for slot in stack.record.slots if slot.role in SERVICES]
    pages = await asyncio.gather(*(get(port, "/metrics") for port in [*ports, stack.port]))
    assert [page.status for page in pages] == [200] * 6
    scene.written["metrics"] = b"".join(page.body for page in pages)
    client = await nats.connect(stack.record.nats_url)
    jetstream = client.jetstream()
    found = {True: b"", False: b""}
    streams = [info.config.name or "" for info in await jetstream.streams_info()]
    assert {"PDBUS_EVENTS", "KV_PDBUS_REQUESTS"} <= set(streams)
    for stream in streams:
        info = await jetstream.stream_info(stream)
        kept = stream == RESULTS
        assert info.config.storage == (StorageType.MEMORY if kept else StorageType.FILE)
        for number in range(info.state.first_seq, info.state.last_seq + 1):
            try:
                msg = await jetstream.get_msg(stream, number)
            except nats.js.errors.NotFoundError:
                continue  # an older revision of a record
            found[kept] += f"{msg.subject} {msg.headers} ".encode() + (msg.data or b"")
    scene.written["streams"], scene.written["results"] = found[False], found[True]
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    for verb in ("INFO", "STATS"):
        await client.publish(f"$SRV.{verb}", b"", reply=inbox)
    listing = [(await answers.next_msg(timeout=2)).data for _ in range(2 * len(SERVICES))]
    scene.written["service api"] = b"".join(listing)
    await client.close()


def files(folder: Path, pattern: str = "**/*") -> bytes:
    """Return the contents of all files that match."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    return b"".join(path.read_bytes() for path in found)


def request_of(reply: Reply) -> bytes:
    """Return the id of the request behind an answer: a key stands for the first one's."""
    answer = reply.events[0] if reply.is_stream else reply.json
    return answer["id"].removeprefix("chatcmpl-").encode()


def test_the_word_went_through_the_stack(scene: Scene) -> None:
    """Answers repeat the word, and the other requests end as they were meant to."""
    for whole, stopped in zip(scene.answers[::2], scene.answers[1::2], strict=True):
        assert whole.claims_completeness
        assert scene.word in whole.text
        assert stopped.finish_reason == "stop"
        assert stopped.text.endswith(scene.word[:-5])
    codes = [(reply.error or {}).get("code") for reply in scene.failures]
    assert set(codes) <= {"engine_error", "kv_transfer_failed"}
    assert codes[1] == codes[4] == "engine_error"
    assert scene.word in scene.failures[1].text
    assert {reply.status for reply in scene.refusals} == {400, 404}
    assert b'"level":"debug"' in scene.written["logs"]


@pytest.mark.parametrize("where", KNOWN)
def test_no_text_is_written(scene: Scene, where: str) -> None:
    """Neither a prompt, nor a stop string, nor an answer is there, as text or as tokens."""
    written = scene.written[where]
    # The search finds what must be there.
    assert (KNOWN[where] or scene.rids[0].encode()) in written
    word = scene.word.encode()
    at = written.find(word)
    assert at < 0, written[max(0, at - 300) : at + 100]
    assert scene.tokens not in written


def test_only_the_memory_of_keyed_answers_has_text(scene: Scene) -> None:
    """An answer is kept where its client gave a key for asking again, and only off the disk."""
    assert all(scene.word in reply.text for reply in scene.kept)
    results = scene.written["results"]
    assert results.count(RESULTS.removeprefix("KV_").encode()) == 2
    for reply in scene.kept:
        assert request_of(reply) in results
    for reply in scene.answers:
        assert request_of(reply) not in results


def test_each_request_is_in_the_logs(scene: Scene) -> None:
    """Every request has left its line, so the search above has looked at all of them."""
    assert [rid for rid in scene.rids if rid.encode() not in scene.written["logs"]] == []
