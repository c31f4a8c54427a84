"""The forward passes of the scripted model: prompt chunks, and one token for each answer."""

from __future__ import annotations

import numpy as np

from libs.engine.script.answer import (
    U64,
    Model,
    Sums,
    contents,
    draw,
    ending,
    next_states,
    prompt_states,
    word_keys,
)
from libs.engine.script.live import LiveJob
from libs.engine.script.memory import KvMemory, Spans
from libs.engine.script.settings import AnswerMode
from libs.engine.script.speech import likelihoods
from proto.output import Details, TokenLogprob

__all__ = ["Compute"]


_ONE = np.uint64(1)
_AHEAD = 64
"""Most steps for which blind answers are drawn at once."""


class _Lane:
    """The answers of a batch side by side, for as long as the same ones are computed.

    Meanwhile what a step reads and changes is here; `settle` tells the jobs.
    """

    def __init__(self, jobs: list[LiveJob], memory: KvMemory, *, drawn: bool) -> None:
        self.jobs = jobs
        self.digests = np.array([live.digest for live in jobs], dtype=np.uint64)
        self.tokens = np.array([live.last_token for live in jobs], dtype=np.uint64)
        written = [live.written for live in jobs]
        self.places = np.array(written, dtype=np.uint64)
        steps = [live.produced for live in jobs]
        self.steps = np.array(steps, dtype=np.uint64)
        self.spans = Spans(memory, [live.places for live in jobs], written, steps)
        self.endless = all(live.bend.ignore_eos for live in jobs)
        self.bent = [place for place, live in enumerate(jobs) if live.bent]
        self.watched = not drawn or bool(self.bent) or not all(live.plain for live in jobs)
        """Whether somebody looks at what is read in each step."""

    def settle(self) -> None:
        """Write back what the steps have changed."""
        figures = (self.digests.tolist(), self.tokens.tolist(), self.places.tolist())
        for live, digest, token, written in zip(self.jobs, *figures, strict=True):
            live.digest, live.last_token, live.written = digest, token, written


class _BlindLane:
    """Answers that do not look at KV, drawn for some steps ahead."""

    def __init__(self, jobs: list[LiveJob], model: Model, words: U64) -> None:
        self.jobs = jobs
        count = min(_AHEAD, max(live.most - live.produced for live in jobs))
        ahead = np.arange(max(1, count), dtype=np.uint64)
        steps = np.array([live.produced for live in jobs], dtype=np.uint64)[:, None] + ahead
        drawn = draw(np.array([live.digest for live in jobs], dtype=np.uint64)[:, None], steps)
        chosen = words[drawn % np.uint64(len(words))]
        if not all(live.bend.ignore_eos for live in jobs):
            may = np.array([not live.bend.ignore_eos for live in jobs])[:, None]
            chosen[ending(drawn, steps, model.answer_tokens) & may] = model.alphabet.eos
        for place, live in enumerate(jobs):
            if live.bent:
                own: list[int] = steps[place].tolist()
                chosen[place] = [model.say(live.digest, step, None, live.bend)[0] for step in own]
        self.left: list[list[int]] = chosen.T.tolist()[::-1]
        """The tokens of each step, the next step last."""


class Compute:
    """Reads and writes KV memory; knows nothing of queues, time or transfers."""

    def __init__(self, model: Model, memory: KvMemory) -> None:
        self._model = model
        self._memory = memory
        self._keys = word_keys(model.buffers, model.words)
        self._words = np.array(model.alphabet.words, dtype=np.uint64)
        self._count = np.uint64(len(self._words))
        self._eos = model.alphabet.eos
        self._drawn = model.answer in {AnswerMode.HASH, AnswerMode.BLIND}
        self._blind = model.answer is AnswerMode.BLIND
        self._blind_lane: _BlindLane | None = None
        self._lane: _Lane | None = None

    def prompt(self, live: LiveJob, tokens: int) -> None:
        """Compute the KV of the next `tokens` tokens of a prompt."""
        if self._blind:
            live.computed = live.written = live.computed + tokens
            return
        if live.computed == 0:
            live.states = prompt_states(live.prompt, self._model.seed)
        begin, end = live.computed, live.computed + tokens
        kv = contents(
            live.states[begin:end],
            live.prompt[begin:end].astype(np.uint64),
            np.arange(begin, end, dtype=np.uint64),
            self._keys,
        )
        self._memory.write(live.places[0, begin:end], kv)
        live.computed = live.written = end

    def first(self, live: LiveJob) -> int:
        """Return the first token of an answer, from the KV of the whole prompt."""
        if self._blind:
            live.digest = self._model.blind(live.prompt)
            return self._token(live, live.digest, 0)
        spans = [live.places[place, : live.length] for place in range(self._model.buffers)]
        live.digest = self._model.first(self._memory.read(spans))
        return self._token(live, live.digest, 0)

    def step(self, batch: list[LiveJob]) -> list[int]:
        """Compute the KV of each last token, then return the next token of each answer."""
        if self._blind:
            return self._step_blind(batch)
        lane = self._lane
        if lane is None or not lane.spans.left or lane.jobs != batch:
            if lane is not None:
                lane.settle()
            lane = self._lane = _Lane(batch, self._memory, drawn=self._drawn)
        states = next_states(lane.digests, lane.tokens, lane.places, self._model.seed)
        lane.spans.write(contents(states, lane.tokens, lane.places, self._keys))
        lane.places += _ONE
        lane.digests = lane.spans.read()
        tokens = self._choose(lane)
        lane.steps += _ONE
        return tokens

    def _step_blind(self, batch: list[LiveJob]) -> list[int]:
        lane = self._blind_lane
        if lane is None or not lane.left or lane.jobs != batch:
            lane = self._blind_lane = _BlindLane(batch, self._model, self._words)
        return lane.left.pop()

    def ends(self, live: LiveJob, token: int) -> bool:
        """Return whether the answer ends by itself with the token that comes next."""
        if not self.may_end(token):
            return False
        step, bend = live.produced, live.bend
        if bend.goes_on(step, self._model.alphabet.eos):
            return False
        plan = None if bend.forced else self._plan(live)
        return token == self._model.alphabet.eos if plan is None else step >= len(plan)

    def may_end(self, token: int) -> bool:
        """Return whether an answer can end by itself with a token."""
        return token == self._eos or not self._drawn

    def details(self, live: LiveJob, token: int) -> Details | None:
        """Return the log-probabilities of the token that comes next, where they are asked for."""
        count, model = live.job.sampling.logprobs, self._model
        if count is None:
            return None
        drawn = model.draw(live.digest, live.produced, live.bend.salt)
        own, top = likelihoods(token, drawn, model.alphabet.words, count)
        return Details(logprobs=(TokenLogprob(token=token, logprob=own, top=top),))

    def _choose(self, lane: _Lane) -> list[int]:
        """Return what `Model.say` does, for a whole batch."""
        batch = lane.jobs
        if lane.watched:
            for live, digest in zip(batch, lane.digests.tolist(), strict=True):
                live.digest = digest
        if not self._drawn:
            for live, last in zip(batch, lane.tokens.tolist(), strict=True):
                live.last_token = last
            tokens = [self._token(live, live.digest, live.produced) for live in batch]
            lane.tokens = np.array(tokens, dtype=np.uint64)
            return tokens
        drawn = draw(lane.digests, lane.steps)
        lane.tokens = chosen = self._words[drawn % self._count]
        if not lane.endless:
            ends = ending(drawn, lane.steps, self._model.answer_tokens)
            struck: list[int] = np.flatnonzero(ends).tolist()
            for place in struck:
                if not batch[place].bend.ignore_eos:
                    chosen[place] = self._model.alphabet.eos
        for place in lane.bent:
            live = batch[place]
            chosen[place] = self._token(live, live.digest, live.produced)
        return chosen.tolist()

    def _token(self, live: LiveJob, digest: int, step: int) -> int:
        plan = self._plan(live)
        if plan is not None and not self._flawless(live, digest, step):
            plan = None
        token, _ = self._model.say(digest, step, plan, live.bend)
        return token

    def _flawless(self, live: LiveJob, digest: int, step: int) -> bool:
        """Return whether what was read is what must be read: a plan alone hides wrong KV."""
        if live.sums is None:
            live.sums = Sums(self._model, live.prompt)
        while live.sums.step < step:
            live.sums.add(live.last_token)
        return live.sums.digest == digest

    def _plan(self, live: LiveJob) -> tuple[int, ...] | None:
        """Return what KV memory tells the answer to say."""
        if not live.planned:
            live.planned = True
            if not self._drawn:
                words = self._memory.first_words(live.places[0, : live.length])
                read = [self._model.echo(word, place) for place, word in enumerate(words)]
                live.plan = self._model.plan(read)
        return live.plan
