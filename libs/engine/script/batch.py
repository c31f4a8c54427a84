"""Continuous batching: what each step of a scripted engine computes, and for how long.

Synchronous and without a clock of its own: `plan` says what the next step does and how long it
takes, `apply` does it. Between the two, jobs may come, and be aborted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

from libs.engine.script.compute import Compute
from libs.engine.script.faults import FaultPlan
from libs.engine.script.jobs import Jobs
from libs.engine.script.live import LiveJob, Stage
from libs.engine.script.settings import Action, Fault, Phase, Profile
from libs.engine.script.transfer import Transfers
from proto.errors import ErrorCode
from proto.host import JobKind

__all__ = ["Batch", "Step"]


@dataclass(slots=True)
class Step:
    """One forward pass."""

    prompts: list[tuple[LiveJob, int]]
    """Prompts, and how many of their tokens are computed."""
    answers: list[LiveJob]
    seconds: float
    changes: int
    """What `Jobs.changes` was."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.prompts and not self.answers


class Batch:
    """Moves jobs through their stages."""

    def __init__(
        self,
        jobs: Jobs,
        compute: Compute,
        transfers: Transfers | None,
        faults: FaultPlan,
        profile: Profile,
        *,
        crash: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._compute = compute
        self._transfers = transfers
        self._faults = faults
        self._profile = profile
        self._crash = crash
        self._last: Step | None = None
        """A step that comes again until something changes."""

    def add(self, live: LiveJob) -> None:
        """Queue a new job."""
        self._jobs.queued[live.job.job] = live
        if live.job.kind is JobKind.AGGREGATED:
            return
        if self._transfers is None:
            self._jobs.fail(live, ErrorCode.ENGINE_ERROR, "this engine has no data plane")
        elif live.job.kind is JobKind.PREFILL:
            self._transfers.offer(live)

    def plan(self, now: float) -> Step:
        """Look at all transfers, admit what fits, and return the next step."""
        if self._transfers is not None:
            self._move(self._transfers, now)
        if self._jobs.queued:
            self._admit(now)
        last = self._last
        if last is not None and last.changes == self._jobs.changes:
            return last
        step = self._look(now)
        # Faults, and prompts that go on, have to be looked at again.
        again = self._faults.none and not step.prompts
        self._last = step if again else None
        return step

    def _look(self, now: float) -> Step:
        budget = self._profile.chunk_tokens
        prompts: list[tuple[LiveJob, int]] = []
        answers: list[LiveJob] = []
        slow = 0.0
        for live in list(self._jobs.admitted.values()):
            decoding = live.stage is Stage.DECODING
            # Most jobs of most steps: no fault waits for them.
            plain = decoding and not live.faults and now >= live.held_until
            if not plain and not self._may_run(live, now):
                continue
            if decoding:
                answers.append(live)
            elif budget:
                tokens = min(budget, live.length - live.computed)
                budget -= tokens
                prompts.append((live, tokens))
            else:
                continue
            slow = max(slow, live.slow_s)
            if live.first_step is None:
                live.first_step = now
        profile = self._profile
        seconds = (
            profile.step_s
            + profile.prefill_token_s * (profile.chunk_tokens - budget)
            + profile.decode_token_s * len(answers)
            + slow
        )
        return Step(prompts, answers, seconds, self._jobs.changes)

    def apply(self, step: Step, now: float) -> None:
        """Do a step, for the jobs of it that still live."""
        for live, tokens in step.prompts:
            if live.pages:
                self._compute.prompt(live, tokens)
                if live.computed == live.length:
                    self._prompt_done(live, now)
        answers = step.answers
        if step.changes != self._jobs.changes:
            answers = [live for live in answers if live.pages]
        if answers:
            self._answer(answers, now)
        if self._transfers is not None and step.prompts:
            self._push(self._transfers, now)

    def _answer(self, answers: list[LiveJob], now: float) -> None:
        put, ends = self._jobs.put, self._compute.may_end
        for live, token in zip(answers, self._compute.step(answers), strict=True):
            if live.plain and not ends(token):
                put(live, token, now)
            else:
                self._say(live, token, now)

    def next_time(self, now: float) -> float:
        """Return when a held job may go on; infinite if none is held."""
        if self._faults.none:
            return inf
        times = [
            time
            for live in self._jobs.admitted.values()
            for time in (live.held_until, live.transfer_after)
            if time > now and isfinite(time)
        ]
        return min(times, default=inf)

    def _admit(self, now: float) -> None:
        for live in list(self._jobs.queued.values()):
            transfers = self._transfers
            prefill = live.job.kind is JobKind.PREFILL
            if prefill and (transfers is None or not transfers.wanted(live)):
                continue
            if not self._jobs.admit(live):
                return
            if live.job.kind is JobKind.DECODE:
                live.stage = Stage.FETCHING
                self._faults.enter(Phase.TRANSFER, live)
            else:
                live.stage = Stage.COMPUTING
                self._faults.enter(Phase.PREFILL, live)
                if prefill:
                    self._faults.enter(Phase.TRANSFER, live)
            self._ask(live, now)

    def _ask(self, live: LiveJob, now: float) -> None:
        """Open the room of a decode job, unless a fault keeps it from that."""
        if live.stage is not Stage.FETCHING or live.fetch is not None:
            return
        self._strike(Phase.TRANSFER, live, 0, now)
        if self._transfers is not None and live.pages and now >= live.transfer_after:
            self._transfers.fetch(live)

    def _may_run(self, live: LiveJob, now: float) -> bool:
        if live.stage is Stage.COMPUTING:
            self._strike(Phase.PREFILL, live, live.computed, now)
        elif live.stage is Stage.DECODING:
            self._strike(Phase.DECODE, live, live.produced, now)
        else:
            self._ask(live, now)
            return False
        unfinished = live.stage is Stage.DECODING or live.computed < live.length
        return unfinished and bool(live.pages) and now >= live.held_until

    def _prompt_done(self, live: LiveJob, now: float) -> None:
        live.prompt_done = now
        token = self._compute.first(live)
        live.last_token = token
        if live.job.kind is JobKind.AGGREGATED:
            self._begin_answer(live, token, now)

    def _begin_answer(self, live: LiveJob, token: int, now: float) -> None:
        live.stage = Stage.DECODING
        self._jobs.changes += 1
        self._faults.enter(Phase.DECODE, live)
        self._say(live, token, now)

    def _say(self, live: LiveJob, token: int, now: float) -> None:
        asked = live.job.sampling.logprobs is not None
        details = self._compute.details(live, token) if asked else None
        ends = self._compute.ends(live, token)
        self._jobs.say(live, token, ends=ends, details=details, now=now)

    def _move(self, transfers: Transfers, now: float) -> None:
        for live in transfers.poll(now):
            room, token, length, live.digest = self._jobs.memory.row(live.row)
            if room != live.job.room or length != live.length:
                detail = "the row that arrived belongs to another room"
                self._jobs.fail(live, ErrorCode.KV_TRANSFER_FAILED, detail)
                continue
            live.computed = live.written = live.length
            self._begin_answer(live, token, now)
        if not self._faults.none:
            # Without a pause between them all pages have been pushed when they were computed.
            self._push(transfers, now)

    def _push(self, transfers: Transfers, now: float) -> None:
        for live in transfers.sending():
            if not transfers.has_pages(live):
                continue
            self._strike(Phase.TRANSFER, live, live.pushed, now)
            if live.pages:
                row = (live.job.room, live.last_token, live.length, live.digest)
                transfers.push(live, row, now)

    def _strike(self, phase: Phase, live: LiveJob, progress: int, now: float) -> None:
        if not live.faults:
            return
        for fault in self._faults.due(phase, live, progress):
            if live.pages:
                self._apply(fault, live, now)

    def _apply(self, fault: Fault, live: LiveJob, now: float) -> None:
        moving = fault.when is Phase.TRANSFER
        match fault.action:
            case Action.CRASH:
                self._crash()
            case Action.ERROR:
                code = ErrorCode.KV_TRANSFER_FAILED if moving else ErrorCode.ENGINE_ERROR
                self._jobs.fail(live, code, "scripted error")
            case Action.CORRUPT:
                self._jobs.memory.corrupt(live.places[:, 0])
            case Action.SLOW if moving:
                live.transfer_gap_s = fault.seconds
            case Action.SLOW:
                live.slow_s = fault.seconds
            case Action.STALL if moving:
                live.transfer_after = now + fault.seconds if fault.seconds else inf
            case Action.STALL:
                live.held_until = now + fault.seconds if fault.seconds else inf
