"""The engines: what they are given, and when (I4, I6, I7, I9, I10)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from proto.base import Message
from proto.control import Abort, Cancel
from proto.decode import DecodeStart, Replay
from proto.gateway import TokenChunk
from proto.host import Job, JobKind
from proto.ids import RequestId
from services.gateway.api import Recover
from tests.sim.ports.network import Link
from tests.sim.progress import job_of

if TYPE_CHECKING:
    from tests.sim.client import Ask
    from tests.sim.process import Life, SimProcess
    from tests.sim.world import World

__all__ = ["Work"]

_TOLD_BOUND_S = 0.1
_PAST_BOUND_S = 2.0
"""How long after the ledger has moved on a decode may still begin to speak."""
_DRAIN_BOUND_S = 0.1


class Work:
    """Follows jobs, prompts and first words."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate
        self.prefills: Counter[tuple[RequestId, int]] = Counter()
        self.prompt_tokens = 0
        """Tokens of prompts that engines have begun to compute."""
        self._orders: dict[tuple[str, RequestId], list[tuple[float, int]]] = {}
        self._spoken: set[tuple[str, RequestId, int]] = set()
        self._readers: dict[str, RequestId] = {}

    # What engines are given

    def job_came(self, process: SimProcess, life: Life, job: Job) -> None:
        """Check a job that an engine is given."""
        rid, attempt = job_of(job)
        now = self._world.loop.time()
        where = life.bus.link.name
        for at_s, up_to in self._orders.get((where, rid), []):
            if attempt <= up_to and now > at_s + _TOLD_BOUND_S:
                self._violate("I7", f"{rid}: {where} starts {attempt}, stopped at {at_s:.3f}")
        if life.stopping and now > life.stopped_s + _DRAIN_BOUND_S:
            self._violate("drain", f"{rid}: {where} starts {attempt} while it drains")
        self._check_continuation(rid, job)

    def prefill_ran(self, process: SimProcess, job: Job) -> None:
        """I6: one prefill run an attempt, and none for an attempt that nobody made."""
        rid, attempt = job_of(job)
        self.prefills[rid, attempt] += 1
        self.prompt_tokens += len(job.input_ids) // 4
        self._world.trace.note("prefill", f"{process.name} computes {rid} {attempt}")
        if self.prefills[rid, attempt] > 1:
            self._violate("I6", f"{rid}: attempt {attempt} is prefilled again, on {process.name}")
        record = self._world.checks.records.now.get(rid)
        if record is None or attempt > record.attempt:
            self._violate("I6", f"{rid}: attempt {attempt} runs and is not in the ledger")
        elif job.kind is JobKind.PREFILL and attempt == record.attempt and record.placement:
            self._check_versions(process, record.placement.decode.incarnation, rid)

    def _check_versions(self, process: SimProcess, decode: str, rid: RequestId) -> None:
        """I9: no prompt is computed for a decode that could not use it."""
        name = self._world.names.get(decode, "")
        other = self._world.cards.get(decode)
        if other is not None and other != process.card:
            self._violate("I9", f"{rid}: {process.name} computes for {name}, and they differ")

    def _check_continuation(self, rid: RequestId, job: Job) -> None:
        """An attempt begins at the prompt, or goes on from where an answer stands, as allowed."""
        ask = self._asks(rid)
        if ask is None:
            return
        prompt, most = ask.input_ids, ask.plan.body.max_tokens
        emitted = (len(job.input_ids) - len(prompt)) // 4
        if not job.input_ids.startswith(prompt) or emitted < 0 or emitted >= most:
            self._violate("I1", f"{rid}: a job with another prompt")
            return
        if job.sampling.max_tokens != most - emitted:
            self._violate("I1", f"{rid}: {job.sampling.max_tokens} tokens after {emitted}")
        if emitted and not self._may_continue(rid):
            self._violate("policy", f"{rid}: goes on after {emitted}, and must not")

    def _asks(self, rid: RequestId) -> Ask | None:
        """Return a client whose body is that of a request."""
        record = self._world.checks.records.now.get(rid)
        digest = record.digest if record else None
        return next((ask for ask in self._world.asks if ask.digest == digest), None)

    def _may_continue(self, rid: RequestId) -> bool:
        record = self._world.checks.records.now[rid]
        return any(
            not ask.plan.body.penalty
            and (
                ask.plan.recover is Recover.ANY
                or (ask.plan.recover is Recover.GREEDY and not ask.plan.body.temperature)
            )
            for ask in self._world.asks
            if ask.digest == record.digest
        )

    # What is said

    def told_to_end(self, link: Link, order: Abort | Cancel) -> None:
        """Take note that a process takes in an order to stop."""
        orders = self._orders.setdefault((link.name, order.rid), [])
        orders.append((self._world.loop.time(), order.attempt))

    def said(self, link: Link, subject: str, message: Message) -> None:
        """Check a message that a process sends."""
        if isinstance(message, TokenChunk):
            self._check_first_word(link, subject, message)
        elif isinstance(message, DecodeStart | Replay):
            self._readers[message.reply.nonce] = message.rid
        elif isinstance(message, Cancel):
            self._check_tenant(subject, message)
        elif isinstance(message, Abort) and subject.endswith(".release"):
            self._check_release(message)

    def _check_tenant(self, subject: str, cancel: Cancel) -> None:
        """I10: a cancel is told under the tenant of its request."""
        record = self._world.checks.records.now.get(cancel.rid)
        if record is not None and subject.split(".")[-2] != record.tenant:
            self._violate("I10", f"{cancel.rid}: cancelled as another tenant's")

    def _check_release(self, order: Abort) -> None:
        """I3: cleanup orders the release of what is over, and of nothing else."""
        record = self._world.checks.records.now.get(order.rid)
        if record is not None and not record.ended and record.attempt <= order.attempt:
            self._violate("I3", f"{order.rid}: a living attempt is ordered to be released")

    def _check_first_word(self, link: Link, subject: str, chunk: TokenChunk) -> None:
        """I4: no decode begins to speak when the ledger has moved on, if it could have asked."""
        rid = self._readers.get(subject.rpartition(".")[2])
        if rid is None or (link.name, rid, chunk.attempt) in self._spoken:
            return
        self._spoken.add((link.name, rid, chunk.attempt))
        past_s = self._world.checks.records.past_s.get((rid, chunk.attempt))
        now = self._world.loop.time()
        if past_s is not None and now > past_s + _PAST_BOUND_S and self._can_claim(link, past_s):
            self._violate("I4", f"{rid}: {link.name} begins {chunk.attempt}, past {past_s:.3f}")

    def _can_claim(self, link: Link, since_s: float) -> bool:
        """Return whether a decode could reach a router, and that one the ledger."""
        faulted = self._world.faulted
        if faulted["outage"] or faulted["store"] or faulted["loss"]:
            return False
        links = [
            process.life.bus.link
            for process in self._world.processes.values()
            if process.role == "router" and process.life and process.life.began_s < since_s - 3.0
        ]
        return link.parted_s < since_s - 3.0 and any(x.parted_s < since_s - 3.0 for x in links)

    # At rest

    def final(self) -> None:
        """I6: no more prefills than attempts."""
        records = self._world.checks.records.now
        for rid, count in Counter(rid for rid, _ in self.prefills).items():
            if count > records[rid].attempt + 1:
                self._violate("I6", f"{rid}: {count} prefills, attempt {records[rid].attempt}")
