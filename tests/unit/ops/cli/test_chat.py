"""What `pdbus chat` makes of the answers of a gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ops.cli.chat import Answer, Question, ask
from ops.cli.errors import CommandError

RID = "0" * 26


class Gateway(ThreadingHTTPServer):
    """Answers every POST with prepared bytes and remembers the body."""

    status = 200
    reply = b""
    asked: dict[str, object]
    key: str | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = {}


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.server.key = self.headers["authorization"]
        self.server.asked = json.loads(self.rfile.read(length))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.reply)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it
        """Say nothing."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Serve prepared answers."""
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def question(gateway: Gateway, *, stream: bool = True) -> Question:
    """Return a question to the prepared gateway."""
    url = f"http://127.0.0.1:{gateway.server_port}"
    return Question(url=url, model="tiny", text="Hello", max_tokens=5, stream=stream)


def event(**fields: object) -> bytes:
    """Return one SSE frame of an answer."""
    return b"data: " + json.dumps({"id": f"chatcmpl-{RID}"} | fields).encode() + b"\n\n"


def delta(text: str = "", finish: str | None = None) -> bytes:
    """Return one SSE frame with a piece of text."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


def test_stream_is_yielded_piece_by_piece(gateway: Gateway) -> None:
    """The pieces come in order, and the answer knows its id and why it ended."""
    gateway.reply = (
        event(choices=[{"index": 0, "delta": {"role": "assistant"}}])
        + b": ping\n\n"
        + delta("Pa")
        + delta("ris")
        + delta(finish="stop")
        + event(choices=[], usage={"total_tokens": 3})
        + b"data: [DONE]\n\n"
    )
    answer = Answer()
    assert list(ask(question(gateway), answer)) == ["Pa", "ris"]
    assert (answer.text, answer.rid, answer.finish) == ("Paris", RID, "stop")
    assert gateway.asked == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
    }


def test_whole_answer(gateway: Gateway) -> None:
    """Without streaming the text comes in one piece."""
    choice = {"index": 0, "message": {"content": "Paris"}, "finish_reason": "length"}
    gateway.reply = json.dumps({"id": f"chatcmpl-{RID}", "choices": [choice]}).encode()
    answer = Answer()
    assert list(ask(question(gateway, stream=False), answer)) == ["Paris"]
    assert answer.finish == "length"


def test_a_cut_stream_is_a_failure(gateway: Gateway) -> None:
    """A stream that stops without a finish reason does not pass for an answer."""
    gateway.reply = delta("Pa")
    with pytest.raises(CommandError, match="broke off"):
        list(ask(question(gateway), Answer()))


def test_an_error_in_mid_stream_is_told(gateway: Gateway) -> None:
    """The error event of a stream becomes the failure of the command."""
    gateway.reply = (
        delta("Pa") + b'data: {"error": {"message": "Lost.", "code": "decode_lost"}}\n\n'
    )
    with pytest.raises(CommandError, match=r"Lost\. \(decode_lost\)"):
        list(ask(question(gateway), Answer()))


def test_a_refusal_is_told(gateway: Gateway) -> None:
    """A refused request fails with the status and the gateway's own words."""
    gateway.status = 404
    gateway.reply = b'{"error": {"message": "No such model.", "code": "model_not_found"}}'
    with pytest.raises(CommandError, match=r"HTTP 404: No such model\. \(model_not_found\)"):
        list(ask(question(gateway), Answer()))


@pytest.mark.parametrize(("key", "sent"), [("pk-1.x", "Bearer pk-1.x"), (None, None)])
def test_a_key_goes_along(gateway: Gateway, key: str | None, sent: str | None) -> None:
    """The key goes into the header that OpenAI's clients use; without one there is none."""
    gateway.reply = delta("Paris", finish="stop")
    assert list(ask(replace(question(gateway), key=key), Answer())) == ["Paris"]
    assert gateway.key == sent


def test_no_gateway_is_told() -> None:
    """A refused connection is one plain line, not a traceback."""
    asked = Question(url="http://127.0.0.1:9", model="tiny", text="Hello")
    with pytest.raises(CommandError, match="cannot be reached"):
        list(ask(asked, Answer()))
