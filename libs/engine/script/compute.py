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
from libs.engine.script.memory import KvMemory
from libs.engine.script.settings import AnswerMode
from libs.engine.script.speech import likelihoods
from proto.output import Details, TokenLogprob

__all__ = ["Compute"]


class Compute:
    """Reads and writes KV memory; knows nothing of queues, time or transfers."""

    def __init__(self, model: Model, memory: KvMemory) -> None:
        self._model = model
        self._memory = memory
        self._keys = word_keys(model.buffers, model.words)
        self._words = np.array(model.alphabet.words, dtype=np.uint64)

    def prompt(self, live: LiveJob, tokens: int) -> None:
        """Compute the KV of the next `tokens` tokens of a prompt."""
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
        spans = [live.places[place, : live.length] for place in range(self._model.buffers)]
        live.digest = self._model.first(self._memory.read(spans))
        return self._token(live, live.digest, 0)

    def step(self, batch: list[LiveJob]) -> list[int]:
        """Compute the KV of each last token, then return the next token of each answer."""
        model, memory = self._model, self._memory
        digests = np.array([live.digest for live in batch], dtype=np.uint64)
        tokens = np.array([live.last_token for live in batch], dtype=np.uint64)
        places = np.array([live.written for live in batch], dtype=np.uint64)
        states = next_states(digests, tokens, places, model.seed)
        kv = contents(states, tokens, places, self._keys)
        memory.write(np.array([memory.place(live.pages, live.written) for live in batch]), kv)
        for live in batch:
            live.written += 1
        buffers = model.buffers
        spans = [live.places[live.produced % buffers][: live.written] for live in batch]
        digests = memory.read(spans)
        for live, digest in zip(batch, digests.tolist(), strict=True):
            live.digest = digest
        if model.answer is not AnswerMode.HASH:
            return [self._token(live, live.digest, live.produced) for live in batch]
        return self._choose(batch, digests)

    def ends(self, live: LiveJob, token: int) -> bool:
        """Return whether the answer ends by itself with the token that comes next."""
        if self._model.answer is AnswerMode.HASH and token != self._model.alphabet.eos:
            return False
        step, bend = live.produced, live.bend
        if bend.goes_on(step, self._model.alphabet.eos):
            return False
        plan = None if bend.forced else self._plan(live)
        return token == self._model.alphabet.eos if plan is None else step >= len(plan)

    def details(self, live: LiveJob, token: int) -> Details | None:
        """Return the log-probabilities of the token that comes next, where they are asked for."""
        count, model = live.job.sampling.logprobs, self._model
        if count is None:
            return None
        drawn = model.draw(live.digest, live.produced, live.bend.salt)
        own, top = likelihoods(token, drawn, model.alphabet.words, count)
        return Details(logprobs=(TokenLogprob(token=token, logprob=own, top=top),))

    def _choose(self, batch: list[LiveJob], digests: U64) -> list[int]:
        """Return what `Model.say` does, for a whole batch."""
        steps = np.array([live.produced for live in batch], dtype=np.uint64)
        drawn = draw(digests, steps)
        tokens: list[int] = self._words[drawn % np.uint64(len(self._words))].tolist()
        if not all(live.bend.ignore_eos for live in batch):
            ends = ending(drawn, steps, self._model.answer_tokens)
            struck: list[int] = np.flatnonzero(ends).tolist()
            for place in struck:
                if not batch[place].bend.ignore_eos:
                    tokens[place] = self._model.alphabet.eos
        for place, live in enumerate(batch):
            if live.bent:
                tokens[place] = self._token(live, live.digest, live.produced)
        return tokens

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
            if self._model.answer is not AnswerMode.HASH:
                words = self._memory.first_words(live.places[0, : live.length])
                read = [self._model.echo(word, place) for place, word in enumerate(words)]
                live.plan = self._model.plan(read)
        return live.plan
