"""The words of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from services.gateway.api import Recover

__all__ = ["After", "AskPlan", "Body", "Fault", "Frame", "Scenario", "State", "When"]

_ECHO_S = 6.0
"""Longest time until a cut is noticed, and until all have reconnected."""


class State(StrEnum):
    """Where a request stands, in the words of the crash matrix."""

    S1 = "S1"
    """Accepted, or queued for a slot."""
    S2 = "S2"
    """Assigned; its prefill has not begun."""
    S3 = "S3"
    """Prefill runs."""
    S4 = "S4"
    """The prompt is computed, and its KV moves."""
    S5 = "S5"
    """Tokens stream."""
    S6 = "S6"
    """Ended, and not yet proved clean."""


@dataclass(frozen=True, slots=True)
class Body:
    """What is asked: prompt and sampling."""

    number: int
    prompt_tokens: int
    max_tokens: int
    no_stop: bool = False
    """Give all tokens, whatever they are."""
    temperature: float = 0.0
    penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class After:
    """Wait for what happens to another ask."""

    number: int
    event: str
    """`sent`, `token`, `left` or `ended`."""
    delay_s: float


@dataclass(frozen=True, slots=True)
class AskPlan:
    """One HTTP request of one client."""

    number: int
    at_s: float
    gateway: int
    body: Body
    deadline_s: float
    tenant: str = "one"
    key: str | None = None
    after: After | None = None
    """Then `at_s` is only the latest time."""
    recover: Recover = Recover.NEVER
    mode: str | None = None
    leave_after_s: float | None = None
    leave_at_token: int | None = None
    pace_s: float = 0.0
    """Time that this client takes for each part that it reads."""
    stall_at_token: int | None = None
    """Reads nothing more from there on, until the gateway gives it up."""


@dataclass(frozen=True, slots=True)
class When:
    """The moment at which a request enters a state, and a little later."""

    state: State
    nth: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, for `for_s` seconds."""

    kind: str
    at_s: float
    for_s: float
    target: str = ""
    """The name of a process; a role if `when` decides."""
    other: str = ""
    value: float = 0.0
    flag: bool = False
    when: When | None = None
    """Then `at_s` does not count."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The size and the times of a world, while it is drawn."""

    shape: str
    names: dict[str, str]
    first_s: float
    span_s: float
    heal_s: float
    most: float
    """Exponent of the longest fault."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole world, before it runs."""

    seed: int
    shape: str
    shuffle: bool
    names: dict[str, str]
    """Process name to role."""
    skew_ms: dict[str, float]
    asks: tuple[AskPlan, ...]
    faults: tuple[Fault, ...]
    heal_s: float
    step_s: float = 0.03
    prefill_tokens_s: float = 2000.0
    linger_s: float = 0.0
    odd_field: str = ""
    """The field of the card in which some workers differ."""
    odd: dict[str, int] = field(default_factory=dict)
    """Those workers, and the life from which on they differ."""

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong at all."""
        return not self.faults and not self.odd

    @property
    def quiet_s(self) -> float:
        """When the last fault has ended and its echoes have died away."""
        if any(fault.when for fault in self.faults):
            return self.heal_s
        return max((f.at_s + 2 * f.for_s + f.value for f in self.faults), default=0.0) + _ECHO_S
