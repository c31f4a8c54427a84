"""What is known of the way from a decode engine to a prefill engine, and who may use it."""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.errors import ErrorCode
from proto.ids import Incarnation, InstanceId
from proto.kv import Lane

__all__ = [
    "ANY_LANE",
    "LaneMode",
    "LanePolicy",
    "PairProbe",
    "PairReport",
    "PairState",
    "Pairs",
    "PairsRequest",
    "SizeProbe",
]


class LaneMode(StrEnum):
    """What happens to a pair on a lane that a policy does not list."""

    ALLOW = "allow"
    """Any lane will do."""
    WARN = "warn"
    """The pair is used, and pointed out."""
    REQUIRE = "require"
    """The pair is not used; a lane that is not known yet counts as a wrong one."""


class LanePolicy(Message, frozen=True, kw_only=True):
    """Which lanes KV may take: `require:rc,cuda_ipc`, `warn:sysv`, or `allow`."""

    mode: LaneMode = LaneMode.ALLOW
    lanes: tuple[Lane, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LanePolicy:
        """Return the policy that an operator wrote.

        Raises:
            ValueError: the text is none, and why.
        """
        word, colon, names = text.strip().partition(":")
        forms = "allow, warn:<lanes> or require:<lanes>"
        if word not in set(LaneMode) or bool(colon) == (word == LaneMode.ALLOW):
            raise ValueError(f"{text!r} is not one of {forms}")
        given = [name.strip() for name in names.split(",") if name.strip()]
        known = {str(lane) for lane in Lane} - {Lane.UNKNOWN, Lane.LOCAL}
        strange = [name for name in given if name not in known]
        if strange or (colon and not given):
            listed = ", ".join(sorted(known))
            raise ValueError(f"{', '.join(strange) or 'nothing'} is not a lane of {listed}")
        return cls(mode=LaneMode(word), lanes=tuple(Lane(name) for name in given))

    @property
    def required(self) -> tuple[Lane, ...]:
        """The only lanes that may be used; none means any."""
        return self.lanes if self.mode is LaneMode.REQUIRE else ()

    def breached_by(self, lane: Lane) -> bool:
        """Return whether a lane is not one of those listed."""
        return self.mode is not LaneMode.ALLOW and lane not in self.lanes

    def __str__(self) -> str:
        if self.mode is LaneMode.ALLOW:
            return str(self.mode)
        return f"{self.mode}:{','.join(self.lanes)}"


ANY_LANE = LanePolicy()
"""The policy of whoever has none."""


class PairState(StrEnum):
    """How a probe of a pair went."""

    UNKNOWN = "unknown"
    """It was not probed yet."""
    UP = "up"
    REFUSED = "refused"
    """One of the two sides will not: another card, or another lane than is required."""
    FAILED = "failed"
    """The way could not be gone."""


class SizeProbe(Message, frozen=True, kw_only=True):
    """What messages of one size took."""

    size_bytes: int
    """Bytes of one message."""
    seconds: float
    """From the ask to the last byte, the best of some tries."""
    lane: Lane

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second, the way of the ask included."""
        return self.size_bytes / self.seconds if self.seconds > 0 else 0.0


class PairProbe(Message, frozen=True, kw_only=True):
    """What a decode engine found on its way to one prefill engine."""

    lane: Lane = Lane.UNKNOWN
    code: ErrorCode | None = None
    """Why the way could not be gone; None when it could."""
    detail: str = ""
    sizes: tuple[SizeProbe, ...] = ()
    """From small to large."""

    @property
    def latency_s(self) -> float:
        """Seconds from an ask to a small answer."""
        return self.sizes[0].seconds if self.sizes else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second of large messages."""
        return self.sizes[-1].bytes_per_s if self.sizes else 0.0


class PairReport(Message, frozen=True, kw_only=True):
    """A pair as its decode worker describes it, in heartbeats and when asked."""

    peer: Incarnation
    """The prefill engine."""
    instance: InstanceId
    """The prefill worker."""
    state: PairState = PairState.UNKNOWN
    lane: Lane = Lane.UNKNOWN
    code: ErrorCode | None = None
    detail: str = ""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    probed_ms: int = 0
    """Unix time of the probe."""
    sizes: tuple[SizeProbe, ...] = ()
    """Only when asked; heartbeats stay small."""


class PairsRequest(Message, frozen=True, kw_only=True):
    """Ask a decode worker for its pairs."""

    probe: bool = False
    """Whether to go all ways again before the answer."""


class Pairs(Message, frozen=True, kw_only=True):
    """The pairs of one decode worker."""

    reports: tuple[PairReport, ...]
