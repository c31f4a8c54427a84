"""The engine port: what a worker service may ask of its engine, and how it ends.

One `Engine` object is one incarnation. It never comes back from the dead: the service makes a new
one, with a new incarnation, from its `EngineFactory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from proto.host import (
    EngineLoad,
    EngineReady,
    Job,
    JobFailed,
    JobFinished,
    JobOutput,
    JobTokens,
)
from proto.ids import Incarnation, JobId
from proto.kv import PeerAddress
from proto.pairs import PairProbe

__all__ = ["Engine", "EngineDead", "EngineFactory", "Outputs", "Plain"]

Plain = Callable[[bytes, str], None]
"""Takes the ids and the text of tokens that have no details."""


class EngineDead(Exception):
    """The engine is gone, or could not start; the text says why."""


class Outputs(Protocol):
    """The outputs of one job, to be iterated once."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> JobOutput: ...

    def deliver(
        self,
        take: Callable[[JobTokens], None],
        last: Callable[[JobFinished | JobFailed], None],
        fail: Callable[[EngineDead], None] | None = None,
        plain: Plain | None = None,
    ) -> None:
        """Have everything handed on where it arrives, first what waits, instead of iterating.

        A task that wakes for each token costs more than all else that is done for it.
        One of `last` and `fail` is called, once, unless the engine is dead and nobody gave `fail`.
        Where `plain` is given, tokens without details may come there instead of to `take`, in one
        order with those. All four must return at once.
        """
        ...


class Engine(Protocol):
    """One incarnation of a running model."""

    @property
    def incarnation(self) -> Incarnation:
        """The name of this life of the engine."""
        ...

    async def start(self) -> EngineReady:
        """Load the model and open the data plane.

        Raises:
            EngineDead: it could not start.
        """
        ...

    def run(self, job: Job) -> Outputs:
        """Compute a job. Yields `JobTokens` in order, then one `JobFinished` or `JobFailed`.

        When the last output has been yielded, the engine holds nothing for the job any more.
        Closing the iterator early does not stop the job: `abort` does. A second run of a live
        job id yields `JobFailed`.

        Raises:
            EngineDead: the engine died; its memory is gone with it.
        """
        ...

    async def abort(self, job: JobId) -> None:
        """Stop a job wherever it is; harmless if unknown. Its `run` still ends as promised.

        Raises:
            EngineDead: there is nobody to tell.
        """
        ...

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Measure the way to a prefill engine; what is wrong with it is part of the answer.

        Raises:
            EngineDead: there is nobody to ask.
        """
        ...

    def load(self) -> EngineLoad:
        """Return the newest figures of the engine."""
        ...

    async def wait_dead(self) -> str:
        """Wait until this incarnation is gone; return why."""
        ...

    async def stop(self) -> None:
        """End the incarnation; returns when its processes are gone."""
        ...


EngineFactory = Callable[[Incarnation], Engine]
"""Makes the next incarnation."""
