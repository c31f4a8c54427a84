"""What a simulated engine answers: each token follows from all tokens before it, through KV pages.

A page holds a fold of the tokens in it, so that a lost, stale or foreign page changes the answer,
and so that prompt and emitted tokens together continue exactly as the first engine would have.
"""

from __future__ import annotations

import struct
import zlib

from proto.gateway import FinishReason

__all__ = [
    "PAGE_TOKENS",
    "Continuation",
    "Judge",
    "TextFlow",
    "chance_of",
    "expected_answer",
    "page_contents",
    "text_of",
    "tokens_of",
]

PAGE_TOKENS = 4
_LAST_STOP = 23
"""One token in so many ends an answer."""
_MOST_ATTEMPTS = 12
_HELD = 5
"""The text of one token in so many comes with the next token, as half a character does."""


def tokens_of(ids: bytes) -> list[int]:
    """Return token ids as numbers."""
    return list(struct.unpack(f"<{len(ids) // 4}I", ids))


def text_of(ids: bytes) -> str:
    """Return the text of some tokens."""
    return "".join(f"{token:x} " for token in tokens_of(ids))


def page_contents(ids: bytes) -> list[int]:
    """Return what the pages of a prompt hold; the last one may be partly filled."""
    width = 4 * PAGE_TOKENS
    return [zlib.crc32(ids[first : first + width]) for first in range(0, len(ids), width)]


class Continuation:
    """Draws the tokens that follow from what pages hold.

    Args:
        pages: the contents of the pages.
        tokens: how many tokens are in them.
    """

    def __init__(self, pages: list[int], tokens: int) -> None:
        self.tokens = tokens
        full = tokens // PAGE_TOKENS
        self._fold = zlib.crc32(struct.pack(f"<{full}I", *pages[:full]))
        self.partial = pages[full] if tokens % PAGE_TOKENS else 0

    @property
    def page(self) -> int:
        """The place of the page that the next token goes to."""
        return self.tokens // PAGE_TOKENS

    @property
    def begins_page(self) -> bool:
        """Whether the next token is the first of its page."""
        return self.tokens % PAGE_TOKENS == 0

    def draw(self, chance: int = 0) -> tuple[int, bool]:
        """Return the next token, and whether an engine that may stop stops with it.

        Args:
            chance: what the engine has drawn; 0 for greedy sampling.
        """
        token = zlib.crc32(self.partial.to_bytes(4, "little"), self._fold + chance)
        return token, token % _LAST_STOP == 0

    def push(self, token: int) -> int:
        """Add a token; return what its page holds now."""
        content = zlib.crc32(struct.pack("<I", token), self.partial)
        self.tokens += 1
        if self.begins_page:
            self._fold = zlib.crc32(struct.pack("<I", content), self._fold)
            self.partial = 0
        else:
            self.partial = content
        return content


class TextFlow:
    """Turns tokens into text, and holds some of it back until the next token."""

    def __init__(self) -> None:
        self._held = ""

    def say(self, token: int, *, last: bool) -> str:
        """Return the text that comes with a token."""
        text = f"{self._held}{token:x} "
        self._held = ""
        if token % _HELD == 0 and not last:
            self._held, text = text, ""
        return text


def chance_of(attempt: int, temperature: float) -> int:
    """Return what an attempt draws: nothing, or something that no other attempt draws."""
    return attempt + 1 if temperature else 0


def expected_answer(
    input_ids: bytes, most: int, *, no_stop: bool = False
) -> tuple[list[int], FinishReason]:
    """Return the right answer to a prompt where chance plays no part, and how it ends."""
    flow = Continuation(page_contents(input_ids), len(input_ids) // 4)
    answer: list[int] = []
    for _ in range(most):
        token, stop = flow.draw()
        flow.push(token)
        answer.append(token)
        if stop and not no_stop:
            return answer, FinishReason.STOP
    return answer, FinishReason.LENGTH


class Judge:
    """Follows an answer token by token: each must follow from those before it.

    Where chance plays a part, each token must be the draw of one attempt, and attempts must not go
    backwards.
    """

    def __init__(
        self, input_ids: bytes, most: int, *, no_stop: bool = False, temperature: float = 0.0
    ) -> None:
        self._flow = Continuation(page_contents(input_ids), len(input_ids) // 4)
        self._most = most
        self._no_stop = no_stop
        self._temperature = temperature
        self._attempt = 0
        self.count = 0
        self.finish: FinishReason | None = None
        """How the answer ends with the last token; None if it must go on."""

    def take(self, token: int) -> str | None:
        """Take the next token; return what is wrong with it, or None."""
        if self.finish is not None:
            return f"a token after the end, {self.count} in all"
        attempts = range(self._attempt, _MOST_ATTEMPTS) if self._temperature else (0,)
        for attempt in attempts:
            right, stop = self._flow.draw(chance_of(attempt, self._temperature))
            if right == token:
                self._attempt = attempt
                break
        else:
            return f"token {self.count} follows from no attempt since {self._attempt}"
        self._flow.push(token)
        self.count += 1
        if stop and not self._no_stop:
            self.finish = FinishReason.STOP
        elif self.count == self._most:
            self.finish = FinishReason.LENGTH
        return None
