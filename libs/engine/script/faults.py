"""Scripted failures: which job is struck, and when."""

from __future__ import annotations

import random
from collections import Counter

from libs.engine.script.live import LiveJob
from libs.engine.script.settings import Fault, Phase
from libs.engine.script.text import Vocabulary

__all__ = ["FaultPlan"]

_ATTEMPT_DIGITS = 2


class FaultPlan:
    """Chooses faults for jobs; counts and dice belong to one life of an engine."""

    def __init__(self, faults: tuple[Fault, ...], seed: int, vocabulary: Vocabulary) -> None:
        self._faults = faults
        self._seen: Counter[Phase] = Counter()
        self._dice = random.Random(seed)  # noqa: S311 - repeatable faults, no secrets
        self._vocabulary = vocabulary
        self._reads_text = any(fault.text for fault in faults)
        self.none = not faults
        """No job is ever struck."""

    def start(self) -> list[Fault]:
        """Return the faults of the engine's own start."""
        return [fault for fault in self._faults if fault.when is Phase.START]

    def enter(self, phase: Phase, live: LiveJob) -> None:
        """Arm a job that reaches `phase` with the faults that will strike it there."""
        if not self._faults:
            return
        live.slow_s = 0.0
        self._seen[phase] += 1
        text = self._vocabulary.text(live.prompt.tolist()) if self._reads_text else ""
        live.faults += [
            fault
            for fault in self._faults
            if fault.when is phase and self._selects(fault, phase, live, text)
        ]

    def due(self, phase: Phase, live: LiveJob, progress: int) -> list[Fault]:
        """Return the armed faults of `phase` that strike now; each is returned once."""
        struck = [
            fault for fault in live.faults if fault.when is phase and progress >= fault.after_tokens
        ]
        if struck:
            live.faults = [fault for fault in live.faults if fault not in struck]
        return struck

    def _selects(self, fault: Fault, phase: Phase, live: LiveJob, text: str) -> bool:
        if fault.nth and fault.nth != self._seen[phase]:
            return False
        if fault.attempt is not None and not live.job.job.endswith(
            f"{fault.attempt:0{_ATTEMPT_DIGITS}d}"
        ):
            return False
        if fault.text and fault.text not in text:
            return False
        return fault.probability >= 1.0 or self._dice.random() < fault.probability
