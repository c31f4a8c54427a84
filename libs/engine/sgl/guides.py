"""Refusing guides that no answer can follow, before SGLang's scheduler meets them.

The scheduler ends a request whose guide it cannot compile, but it logs the guide; a guide that
leaves no token to say ends as an error of the engine; and one that takes minutes to compile cannot
be stopped. A guide is therefore compiled here first, for growing samples of the vocabulary, on
threads that nobody waits for long. What they take tells what the whole vocabulary would take.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proto.sampling import Guide, GuideKind

__all__ = ["GuideCheck", "Vocabulary"]

_MOST_CHARACTERS = {
    GuideKind.JSON_SCHEMA: 1 << 18,
    GuideKind.REGEX: 1 << 14,
    GuideKind.EBNF: 1 << 16,
}
_MOST_S = 10.0
"""How long a request waits for the verdict."""
_MOST_CPU_S = 10.0
"""What the scheduler may spend on a guide; for a usual one it is some milliseconds."""
_SAMPLES = (0, 32, 2048)
"""About so many tokens of a vocabulary, beside all single bytes."""
_NOISE_S = 0.05
_NOISE = 0.5
"""What the time of one sample may be above that of a smaller one for no reason."""
_THREADS = 2
_REMEMBERED = 512
_BYTES = 256
_DETAIL = 300

Vocabulary = Callable[[], Sequence[bytes]]
"""Returns the tokens of a model as bytes; called once, with the first guide."""


class GuideCheck:
    """Says what is wrong with a guide. Use it on one loop only.

    Args:
        vocabulary: of the model.
        whitespace: how JSON may be spaced, as SGLang passes it on to xgrammar.
    """

    def __init__(self, vocabulary: Vocabulary, **whitespace: bool | int | None) -> None:
        self._vocabulary = vocabulary
        self._whitespace = whitespace
        self._xgrammar: Any = importlib.import_module("xgrammar")
        self._features: Any = importlib.import_module(
            "sglang.srt.constrained.json_schema_validation"
        )
        self._samples: list[tuple[int, Any]] = []
        self._tokens = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "guides")
        self._known: OrderedDict[bytes, str] = OrderedDict()

    async def problem(self, guide: Guide) -> str:
        """Return why no answer can follow the guide; empty if one can."""
        most = _MOST_CHARACTERS[guide.kind]
        if len(guide.text) > most:
            return f"the guide has {len(guide.text)} characters, and at most {most} are allowed"
        key = hashlib.sha256(f"{guide.kind} {guide.text}".encode(errors="replace")).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._compile, guide)
        # The thread cannot be stopped; it ends by itself, and what it found is kept.
        work.add_done_callback(lambda done: self._keep(key, done))
        try:
            async with asyncio.timeout(_MOST_S):
                return await asyncio.shield(work)
        except TimeoutError:
            return f"the guide could not be compiled within {_MOST_S:g} s"

    def close(self) -> None:
        """Take no more guides."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _keep(self, key: bytes, done: asyncio.Future[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        self._known[key] = done.result()
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _compile(self, guide: Guide) -> str:
        self._draw_samples()
        sizes: list[int] = []
        seconds: list[float] = []
        compiled: Any = None
        try:
            if guide.kind is GuideKind.JSON_SCHEMA:
                self._features.validate_xgrammar_json_schema(json.loads(guide.text))
            for size, sample in self._samples:
                begin = time.thread_time()
                compiled = self._compiled(guide, sample)
                sizes.append(size)
                seconds.append(time.thread_time() - begin)
                if self._foreseen(sizes, seconds) > _MOST_CPU_S:
                    return "the guide is too complex"
        except (RuntimeError, ValueError, RecursionError) as error:
            return f"the guide cannot be compiled: {_without_place(str(error))}"
        return "" if self._begins(compiled, sizes[-1]) else "no answer can follow the guide"

    def _foreseen(self, sizes: list[int], seconds: list[float]) -> float:
        """Return how many seconds the whole vocabulary would take.

        A part of the work is the same for any vocabulary; the rest grows with it.
        """
        more = seconds[-1] - seconds[0]
        if more < _NOISE_S + _NOISE * seconds[0]:
            return seconds[-1]
        each = more / (sizes[-1] - sizes[0])
        return seconds[-1] + each * max(0, self._tokens - sizes[-1])

    def _compiled(self, guide: Guide, sample: Any) -> Any:
        compiler = self._xgrammar.GrammarCompiler(sample, max_threads=1, cache_enabled=False)
        match guide.kind:
            case GuideKind.JSON_SCHEMA:
                return compiler.compile_json_schema(guide.text, **self._whitespace)
            case GuideKind.REGEX:
                return compiler.compile_regex(guide.text)
            case GuideKind.EBNF:
                return compiler.compile_grammar(guide.text)

    def _begins(self, compiled: Any, tokens: int) -> bool:
        """Return whether any token may begin an answer."""
        mask = self._xgrammar.allocate_token_bitmask(1, tokens)
        self._xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
        return bool(mask.any())

    def _draw_samples(self) -> None:
        with self._lock:
            if self._samples:
                return
            tokens = self._vocabulary()
            self._tokens = len(tokens)
            bytes_ = [bytes([byte]) for byte in range(_BYTES)]
            for most in _SAMPLES:
                drawn = tokens[:: max(1, len(tokens) // most)] if most else ()
                sample = bytes_ + [token for token in drawn if len(token) > 1]
                info = self._xgrammar.TokenizerInfo(
                    sample,
                    self._xgrammar.VocabType.RAW,
                    vocab_size=len(sample),
                    stop_token_ids=[0],
                )
                self._samples.append((len(sample), info))


def _without_place(text: str) -> str:
    """Return an error of xgrammar without the time and the place in its source."""
    _, marked, rest = text.partition(".cc:")
    return (rest.partition(": ")[2] if marked else text)[:_DETAIL].strip()
