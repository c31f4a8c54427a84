"""Between a worker service and its engine host: a local socket, length-prefixed messages."""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.ids import Incarnation, JobId, Room
from proto.kv import PeerAddress, TransferReport
from proto.output import Details, Parsing
from proto.pairs import PairProbe
from proto.sampling import SamplingParams
from proto.workers import CompatCard, Feature

__all__ = [
    "AbortJob",
    "EngineLoad",
    "EngineReady",
    "FromHost",
    "HostFailed",
    "HostProgress",
    "Job",
    "JobFailed",
    "JobFinished",
    "JobKind",
    "JobOutput",
    "JobTokens",
    "PeerProbed",
    "ProbePeer",
    "StepTokens",
    "StopHost",
    "ToHost",
]


class JobKind(StrEnum):
    """Which part of a request an engine computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class Job(Message, frozen=True, kw_only=True):
    """One attempt, as an engine sees it."""

    job: JobId
    kind: JobKind
    input_ids: bytes
    """Token ids, little-endian uint32."""
    sampling: SamplingParams
    room: Room
    source: PeerAddress | None = None
    asker: Incarnation | None = None
    """Prefill only: the engine that will ask for the room. If it is linked, computing may begin."""
    traceparent: str | None = None
    tracestate: str | None = None
    parsing: Parsing | None = None
    """Decode only."""
    cache_salt: str = ""
    """Requests share cached prefixes only with those of the same salt."""


class AbortJob(Message, frozen=True, kw_only=True):
    """Stop a job; harmless if the engine does not know it."""

    job: JobId


class StopHost(Message, frozen=True, kw_only=True):
    """End the host process in order."""


class ProbePeer(Message, frozen=True, kw_only=True):
    """Measure the way to a prefill engine."""

    number: int
    """Names this ask in its answer."""
    source: PeerAddress


class PeerProbed(Message, frozen=True, kw_only=True):
    """What a probe has found."""

    number: int
    found: PairProbe


class EngineReady(Message, frozen=True, kw_only=True):
    """The model is loaded and the data plane listens."""

    card: CompatCard
    address: PeerAddress | None
    slots: int
    kv_total_tokens: int
    max_request_tokens: int
    """Prompt and answer together, at most."""
    pids: tuple[int, ...] = ()
    features: tuple[Feature, ...] = ()


class HostProgress(Message, frozen=True, kw_only=True):
    """What the host does before it is ready, for people who wait."""

    text: str


class JobTokens(Message, frozen=True, kw_only=True, gc=False):
    """New tokens of a job, in order."""

    job: JobId
    ids: bytes
    text: str = ""
    details: Details | None = None


class StepTokens(Message, frozen=True, kw_only=True, gc=False):
    """What `JobTokens` without details say of several jobs, side by side and in order.

    A step of an engine gives a token to each running job: read as columns they cost a fraction.
    """

    jobs: tuple[JobId, ...]
    ids: tuple[bytes, ...]
    texts: tuple[str, ...]

    def apart(self) -> list[JobTokens]:
        """Return the same as one message a job."""
        columns = zip(self.jobs, self.ids, self.texts, strict=True)
        return [JobTokens(job=job, ids=ids, text=text) for job, ids, text in columns]


class JobFinished(Message, frozen=True, kw_only=True):
    """A job is over and the engine has freed, or given to its cache, all that the job held."""

    job: JobId
    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    text: str = ""
    """What was held back until the end was known."""
    details: Details | None = None
    """The same for calls and reasoning."""
    queue_s: float = 0.0
    """From arrival in the engine until its first forward pass."""
    forward_s: float = 0.0
    """From the first forward pass until the prompt was computed."""
    wait_kv_s: float = 0.0
    """Decode: from arrival in the engine until the KV was usable."""
    transfer: TransferReport | None = None


class JobFailed(Message, frozen=True, kw_only=True):
    """A job ended early and the engine holds nothing for it any more."""

    job: JobId
    code: ErrorCode
    detail: str = ""
    transfer: TransferReport | None = None


class EngineLoad(Message, frozen=True, kw_only=True):
    """The engine's own figures, sent by the host on change and at least once a second."""

    running: int = 0
    waiting: int = 0
    kv_used_tokens: int = 0
    """Tokens held by requests; a reusable prefix cache does not count."""
    kv_total_tokens: int = 0
    open_rooms: int = 0
    """Transfers that the data plane still knows."""
    dropped_chunks: int = 0
    """Chunks that arrived for unknown or closed rooms."""
    unshared_links: int = 0
    """Links on one host that got no shared memory, since the start."""
    age_s: float = 0.0
    """Age of the scheduler's figures."""


class HostFailed(Message, frozen=True, kw_only=True):
    """The engine died or could not start; the host exits after this."""

    detail: str


ToHost = Job | AbortJob | ProbePeer | StopHost
JobOutput = JobTokens | JobFinished | JobFailed
FromHost = (
    EngineReady
    | HostProgress
    | JobTokens
    | StepTokens
    | JobFinished
    | JobFailed
    | EngineLoad
    | PeerProbed
    | HostFailed
)
