"""Checks what a gateway answers against OpenAI's schemas, whoever asked and whatever for.

The clients of the suites hand over every answer that they read. A breach fails the test. Where the
schemas are not beside the checkout, only the order of streams is checked.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.support.checked import spec

__all__ = ["AnswerCheck", "SchemaBreach"]

_CHAT, _TEXT, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_WHOLE = {
    _CHAT: "CreateChatCompletionResponse",
    _TEXT: "CreateCompletionResponse",
    _RESPONSES: "Response",
    "/v1/models": "ListModelsResponse",
}
_CHUNK = {_CHAT: "CreateChatCompletionStreamResponse", _TEXT: spec.TEXT_CHUNK}
_DONE = "[DONE]"
_LAST = {"response.completed", "response.incomplete", "response.failed", "error"}
_OK, _BAD = 200, 400


class SchemaBreach(AssertionError):
    """An answer is not what OpenAI's clients may expect."""


class AnswerCheck:
    """Looks at one answer as it grows.

    Args:
        path: the path that was asked.
    """

    def __init__(self, path: str) -> None:
        self._path = path.partition("?")[0]
        self._seen = 0
        self._chunks = _Chunks(roles=self._path == _CHAT)
        self._events = _Events()
        self._over = False

    def feed(self, status: int, kind: str, body: bytes, *, whole: bool) -> None:
        """Check what is new; may be called as often as something has arrived.

        Args:
            status: 0 while there is no head yet.
            kind: the media type.
            body: all that has come so far.
            whole: whether no more will come.

        Raises:
            SchemaBreach: an answer of the API breaks its schema, or the order of a stream.
        """
        if self._over or not status:
            return
        if kind.startswith("text/event-stream"):
            self._stream(body, whole=whole)
        elif whole:
            self._plain(status, kind, body)
        self._over = whole

    def _plain(self, status: int, kind: str, body: bytes) -> None:
        ours = self._path.startswith("/v1/") or self._path in {"/tokenize", "/detokenize"}
        if status >= _BAD:
            # Probes have an answer of their own, and other servers answer as they like.
            if ours or (kind == "application/json" and b'"error"' in body):
                _must(kind == "application/json", f"an error of type {kind}", body)
                _validate("ErrorResponse", _json(body))
        elif status == _OK and ours:
            name = _WHOLE.get(self._path)
            if name is None and self._path.startswith("/v1/models/"):
                name = "Model"
            if name is not None:
                _validate(name, _json(body))

    def _stream(self, body: bytes, *, whole: bool) -> None:
        while (end := body.find(b"\n\n", self._seen)) >= 0:
            lines = body[self._seen : end].split(b"\n")
            self._seen = end + 2
            self._frame([line for line in lines if not line.startswith(b":")])
        if whole:
            rest = body[self._seen :]
            _must(not rest, "the stream ends inside an event", rest)
            over = self._events if self._path == _RESPONSES else self._chunks
            over.end()

    def _frame(self, lines: list[bytes]) -> None:
        if not lines:
            return
        name = ""
        if self._path == _RESPONSES:
            _must(lines[0].startswith(b"event: "), "an event without a name", lines)
            name = lines.pop(0).removeprefix(b"event: ").decode()
        _must(len(lines) == 1 and lines[0].startswith(b"data: "), "not one line of data", lines)
        data = lines[0].removeprefix(b"data: ").decode("utf-8", errors="strict")
        if self._path == _RESPONSES:
            self._events.take(name, _json(data))
        else:
            self._chunks.take(_DONE if data == _DONE else _json(data), _CHUNK.get(self._path))


class _Chunks:
    """The order of chat chunks and text chunks."""

    def __init__(self, *, roles: bool) -> None:
        self._roles = roles
        self._said: Counter[int] = Counter()
        self._finished: set[int] = set()
        self._head: tuple[Any, ...] | None = None
        self._usage = False
        self._last = ""

    def take(self, chunk: Any, schema: str | None) -> None:
        _must(not self._last, f"something after {self._last}", chunk)
        if chunk == _DONE:
            self._last = _DONE
            _must(self._finished == set(self._said), "[DONE] before the last finish", chunk)
            return
        if "error" in chunk:
            self._last = "the error"
            _validate("ErrorResponse", chunk)
            return
        if schema is not None:
            _validate(schema, chunk)
        head = tuple(chunk.get(key) for key in ("id", "object", "created", "model"))
        _must(self._head in {None, head}, f"not the head {self._head}", chunk)
        self._head = head
        _must(not self._usage, "something after the usage", chunk)
        if not chunk["choices"]:
            _must(bool(chunk.get("usage")), "no choices and no usage", chunk)
            _must(self._finished == set(self._said), "usage before the last finish", chunk)
            self._usage = True
        for choice in chunk["choices"]:
            self._choice(choice)

    def _choice(self, choice: Any) -> None:
        index = choice["index"]
        _must("finish_reason" in choice, "no finish_reason", choice)
        _must(index not in self._finished, "something after the finish", choice)
        called = [call["index"] for call in choice.get("delta", {}).get("tool_calls") or ()]
        _must(len(called) == len(set(called)), "two entries of one call", choice)
        if self._roles:
            first = not self._said[index]
            _must((choice["delta"].get("role") == "assistant") is first, "role", choice)
        self._said[index] += 1
        if choice["finish_reason"] is not None:
            self._finished.add(index)

    def end(self) -> None:
        _must(bool(self._last), "the stream ends without [DONE] or an error", self._head)


class _Events:
    """The order of the events of `/v1/responses`."""

    def __init__(self) -> None:
        self._count = 0
        self._last = ""

    def take(self, name: str, event: Any) -> None:
        _must(not self._last, f"something after {self._last}", event)
        _must(event["type"] == name, f"the event is named {name}", event)
        _must(event["sequence_number"] == self._count, f"not number {self._count}", event)
        begin = ("response.created", "response.in_progress")
        if self._count < len(begin) and name != "error":
            _must(name == begin[self._count], f"not {begin[self._count]}", event)
        self._count += 1
        if spec.available():
            schema = spec.event_schema(name)
            _must(schema is not None, "no event that OpenAI knows", event)
            _validate(str(schema), event)
        if name in _LAST:
            self._last = name

    def end(self) -> None:
        _must(bool(self._last), "the stream ends without a last event", self._count)


def _json(text: bytes | str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise SchemaBreach(f"not JSON: {error}: {text[:500]!r}") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _validate(name: str, value: Any) -> None:
    if not spec.available():
        return
    found = next(iter(spec.validator(name).iter_errors(value)), None)
    if found is not None:
        raise SchemaBreach(f"no {name}: {found}\n{json.dumps(value)[:2000]}")


def _must(holds: bool, what: str, value: object) -> None:
    if not holds:
        raise SchemaBreach(f"{what}: {str(value)[:1000]}")
