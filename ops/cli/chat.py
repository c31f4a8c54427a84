"""Asking a gateway over its REST API, as any client would."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ops.cli.errors import CommandError

__all__ = ["KEY_VARIABLE", "Answer", "Question", "ask"]

KEY_VARIABLE = "PDBUS_API_KEY"
"""Where the command line finds the API key that a gateway asks for."""

TIMEOUT_S = 300.0
"""Longest silence that is waited out."""

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One chat request."""

    url: str
    """Base address of a gateway."""
    model: str
    text: str
    max_tokens: int = 128
    temperature: float = 0.0
    stream: bool = True
    key: str | None = None
    """API key, for a gateway that asks for one."""

    def headers(self) -> dict[str, str]:
        """Return the headers of the request."""
        key = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return {"content-type": "application/json", **key}

    def body(self) -> bytes:
        """Return the request as JSON."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        }
        return msgspec.json.encode(fields)


@dataclass(slots=True)
class Answer:
    """What is known of the answer so far."""

    rid: str = ""
    finish: str = ""
    pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.pieces)


class _Delta(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    delta: _Delta = _Delta()
    message: _Delta = _Delta()
    finish_reason: str | None = None


class _Error(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""
    code: str | None = None


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk, a whole answer, or an error: whatever the gateway sends."""

    id: str = ""
    choices: tuple[_Choice, ...] = ()
    error: _Error | None = None


def ask(question: Question, answer: Answer) -> Iterator[str]:
    """Yield the pieces of the answer as they come, and fill in `answer`.

    Raises:
        CommandError: the gateway cannot be reached, refuses, or breaks off.
    """
    address = urlsplit(question.url)
    link = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port or 80, timeout=TIMEOUT_S
    )
    try:
        yield from _exchange(link, question, answer)
    except TimeoutError as error:
        message = f"the gateway at {question.url} was silent for {TIMEOUT_S:.0f} s"
        raise CommandError(message) from error
    except (ConnectionError, socket.gaierror, http.client.HTTPException) as error:
        message = f"the gateway at {question.url} cannot be reached or broke off: {_words(error)}"
        raise CommandError(message) from error
    finally:
        link.close()


def _exchange(
    link: http.client.HTTPConnection, question: Question, answer: Answer
) -> Iterator[str]:
    link.request("POST", "/v1/chat/completions", question.body(), question.headers())
    response = link.getresponse()
    if response.status != http.client.OK:
        raise _refusal(response.status, response.read())
    lines = _events(response) if question.stream else iter([response.read()])
    for data in lines:
        if data == _DONE:
            break
        reply = _decode(data)
        if reply.error is not None:
            raise CommandError(_told(reply.error))
        answer.rid = reply.id.removeprefix("chatcmpl-") or answer.rid
        yield from _pieces(reply, answer)
    if not answer.finish:
        message = "the answer broke off before its end"
        raise CommandError(message)


def _pieces(reply: _Reply, answer: Answer) -> Iterator[str]:
    for choice in reply.choices:
        text = choice.delta.content or choice.message.content
        if choice.finish_reason:
            answer.finish = choice.finish_reason
        if text:
            answer.pieces.append(text)
            yield text


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline():
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").strip()


def _decode(data: bytes) -> _Reply:
    try:
        return msgspec.json.decode(data, type=_Reply)
    except msgspec.DecodeError as error:
        message = f"the gateway sent something that is not an answer: {error}"
        raise CommandError(message) from error


def _refusal(status: int, body: bytes) -> CommandError:
    try:
        error = msgspec.json.decode(body, type=_Reply).error
    except msgspec.DecodeError:
        error = None
    return CommandError(f"HTTP {status}: {_told(error) if error else 'no reason given'}")


def _told(error: _Error) -> str:
    return f"{error.message} ({error.code})" if error.code else error.message


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
