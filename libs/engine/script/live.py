"""A job inside the scripted engine: where it stands and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from libs.engine.script.answer import U64, Sums
from libs.engine.script.settings import Fault
from libs.engine.script.speech import Bend
from libs.engine.script.text import StopFilter, TextStream
from libs.engine.stream import OutputStream
from libs.transfer.api import Fetch, Offer
from proto.host import Job

__all__ = ["LiveJob", "Stage"]


_NO_PLACES = np.zeros((0, 0), np.int64)
_NO_STATES = np.zeros(0, np.uint64)


class Stage(Enum):
    """What a job waits for."""

    QUEUED = auto()
    """For a slot and pages (and, in prefill, for decode's ask)."""
    COMPUTING = auto()
    """For its prompt to be computed."""
    SENDING = auto()
    """For its last chunk to leave."""
    FETCHING = auto()
    """For its KV to arrive."""
    DECODING = auto()
    """For its next token."""


@dataclass(slots=True, eq=False)
class LiveJob:
    """Everything the engine knows of one job; dropped as a whole when the job ends."""

    job: Job
    stream: OutputStream
    prompt: npt.NDArray[np.uint32]
    arrived: float
    text: TextStream
    stops: StopFilter
    bend: Bend
    stage: Stage = Stage.QUEUED
    offer: Offer | None = None
    fetch: Fetch | None = None
    over: bool = False
    """It has ended, well or badly, and holds nothing."""

    pages: list[int] = field(default_factory=list[int])
    row: int = -1
    places: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_PLACES)
    """Where each token of the request lies, a line a buffer."""
    states: U64 = field(default_factory=lambda: _NO_STATES)
    """The state of each prompt token; only where the prompt is computed here."""

    computed: int = 0
    """Prompt tokens whose KV is in memory."""
    pushed: int = 0
    """Prompt tokens whose pages were given to the data plane."""
    written: int = 0
    """Tokens, of prompt and answer, whose KV is in memory."""
    produced: int = 0
    """Tokens of the answer."""
    length: int = field(init=False)
    """Tokens of the prompt."""
    most: int = field(init=False)
    """Most tokens of the answer."""
    plain: bool = field(init=False)
    """Whether nothing is looked at beside each token: no stops, no log-probabilities."""
    last_token: int = 0
    digest: int = 0
    """What was read to make the last token; this, the last token and `written` are behind while
    the answer is in a batch (`libs.engine.script.compute`)."""
    plan: tuple[int, ...] | None = None
    """All that the answer says, where it is not drawn; read from KV before the first token that is
    computed here."""
    planned: bool = False
    bent: bool = field(init=False)
    """Whether its tokens may not be those that are drawn for a whole batch."""
    sums: Sums | None = None
    """Beside a plan: what must be read, since the plan alone would not show what is wrong in KV."""

    first_step: float | None = None
    prompt_done: float | None = None
    kv_usable: float | None = None

    faults: list[Fault] = field(default_factory=list[Fault])
    """Faults that will strike this job."""
    held_until: float = 0.0
    """No computing before this time; infinite for a stall without end."""
    slow_s: float = 0.0
    """Added to each step that computes this job."""
    transfer_after: float = 0.0
    """Nothing is given to, or asked from, the data plane before this time."""
    transfer_gap_s: float = 0.0
    """Pause after each push."""

    def __post_init__(self) -> None:
        """Ask once what every step must know."""
        sampling = self.job.sampling
        self.length = len(self.prompt)
        self.bent = not self.bend.moot
        self.most = sampling.max_tokens
        self.plain = not (sampling.stop or sampling.stop_token_ids or sampling.logprobs is not None)
