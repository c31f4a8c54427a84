"""What a scripted engine is told: its shape, its speed, its answers and its faults."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["MARKERS", "Action", "AnswerMode", "Fault", "Phase", "Profile", "ScriptOptions"]

MARKERS = ("[[say]]", "[[/say]]")
"""Between them a prompt holds what `AnswerMode.SAY` says."""

Seconds = Annotated[float, Meta(ge=0.0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class AnswerMode(StrEnum):
    """How the next token follows from the KV memory."""

    HASH = "hash"
    """Plain words drawn by a hash of all KV that the request holds."""
    ECHO = "echo"
    """The prompt itself, read back from KV memory token by token."""
    SAY = "say"
    """The text between the last `[[say]]` and the `[[/say]]` after it, read back from KV memory:
    a test tells the model what to say. A prompt without the markers is answered as by `hash`."""
    BLIND = "blind"
    """Plain words drawn by a hash of the prompt. KV memory is moved but neither made nor read, so
    wrong KV does not show: for measuring what stands around an engine."""


class Phase(StrEnum):
    """Where in a job's life a fault strikes."""

    START = "start"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"


class Action(StrEnum):
    """What a fault does."""

    ERROR = "error"
    """The job fails (at `start`: the engine does not come up)."""
    STALL = "stall"
    """The job makes no progress for `seconds`; 0 means for ever. Other jobs go on."""
    SLOW = "slow"
    """Every engine step that computes the job takes `seconds` longer, for all jobs in it."""
    CRASH = "crash"
    """The engine process dies at once."""
    CORRUPT = "corrupt"
    """A bit of the KV of the job's first token is changed, so its answer must come out wrong.

    At `transfer` in prefill: before the first push. At `decode`: before the next step.
    """


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted failure. It strikes a job once, when all conditions hold."""

    when: Phase
    action: Action
    nth: Count = 0
    """Strike only the nth job that reaches the phase, counted from 1; 0 means each."""
    probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """Drawn for each job from the engine's seed."""
    text: str = ""
    """Strike only jobs whose prompt has this text."""
    attempt: int | None = None
    """Strike only this attempt of a request (the last two digits of the job id)."""
    after_tokens: Count = 0
    """Prefill: strike once so many prompt tokens are computed; decode: so many were generated."""
    seconds: Seconds = 0.0


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast the engine is. One step computes prompt chunks and one token of each answer."""

    start_s: Seconds = 0.0
    """How long the engine pretends to load."""
    step_s: Seconds = 0.0
    """Fixed part of every step."""
    prefill_token_s: Seconds = 0.0
    decode_token_s: Seconds = 0.0
    """For each running request in a step."""
    chunk_tokens: Positive = 2048
    """Most prompt tokens that one step computes."""


class ScriptOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that only the scripted engine needs."""

    seed: int = 0
    """Part of the model's identity: engines with other seeds give other answers."""
    answer: AnswerMode = AnswerMode.HASH
    """`say` with a prompt such as `Please: [[say]]Hello.[[/say]]` answers `Hello.` and ends."""
    guides: bool = False
    """Claim to follow guides and follow none: for tests that tell the model what matches them."""
    answer_tokens: Positive = 48
    """Mean length of an answer that may end by itself."""
    layers: Positive = 2
    kv_heads: Positive = 1
    head_dim: Annotated[int, Meta(ge=4, multiple_of=4)] = 8
    """Values of 2 bytes; a token takes kv_heads x head_dim x 2 bytes in each K and V buffer."""
    vocab: Positive = 32000
    """Size of the made-up vocabulary; used only when there is no tokenizer."""
    claims: dict[str, str | int | None] = {}
    """Fields of the compatibility card that the engine states otherwise than they are."""
    profile: Profile = Profile()
    faults: tuple[Fault, ...] = ()
