"""The official `openai` client for tests: what it reads is checked against OpenAI's schemas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai

from tests.support.checked.answers import AnswerCheck

__all__ = ["sdk"]


def sdk(
    port: int,
    *,
    max_retries: int = 0,
    noted: list[httpx.Response] | None = None,
    **options: Any,
) -> openai.AsyncOpenAI:
    """Return a client of the gateway at a port, to be used as a context.

    Args:
        noted: gets the head of each answer, those too that the client tries again after.
    """

    async def note(response: httpx.Response) -> None:
        if noted is not None:
            noted.append(response)

    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=options.pop("api_key", "any"),
        max_retries=max_retries,
        http_client=openai.DefaultAsyncHttpxClient(
            transport=_Checked(), event_hooks={"response": [note]}
        ),
        **options,
    )


class _Checked(httpx.AsyncHTTPTransport):
    """Hands on what is read, once it has been checked."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        check = AnswerCheck(request.url.path)
        response.stream = _CheckedStream(response, check)
        return response


class _CheckedStream(httpx.AsyncByteStream):
    def __init__(self, response: httpx.Response, check: AnswerCheck) -> None:
        self._inner = response.stream
        self._status = response.status_code
        self._kind = response.headers.get("content-type", "")
        self._check = check
        self._body = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._inner, httpx.AsyncByteStream)
        async for piece in self._inner:
            self._body += piece
            self._check.feed(self._status, self._kind, self._body, whole=False)
            yield piece
        self._check.feed(self._status, self._kind, self._body, whole=True)

    async def aclose(self) -> None:
        assert isinstance(self._inner, httpx.AsyncByteStream)
        await self._inner.aclose()
