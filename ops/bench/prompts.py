"""Prompts of given lengths that look like text and never share a beginning."""

from __future__ import annotations

import math
import random
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["lengths", "prompt"]

_TEXT = (
    "river stone light answer people morning table engine number water house story letter night "
    "garden window music paper mountain city road voice winter market bridge forest island "
    "teacher student doctor farmer captain question reason moment history science language "
    "works moves carries finds gives keeps turns opens builds writes reads follows remembers "
    "small large quiet early bright heavy simple careful distant common the a of and to in with "
    "from under over between because while before after"
)


def prompt(model: Path, tokens: int, seed: int) -> list[int]:
    """Return exactly `tokens` token ids of made-up text; another seed gives another text."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    source = random.Random(seed)  # noqa: S311 - must repeat
    words = [f"{source.randrange(10**6)}"]
    words += source.choices(_TEXT.split(), k=tokens * 2 + 4)
    return tokenizer.encode(" ".join(words)).ids[:tokens]


def lengths(count: int, shortest: int, longest: int) -> list[int]:
    """Return `count` lengths from `shortest` to `longest`, evenly spread on a log scale."""
    low, high = math.log(shortest), math.log(longest)
    return [round(math.exp(low + (high - low) * step / (count - 1))) for step in range(count)]
