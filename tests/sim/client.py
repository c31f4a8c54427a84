"""A client and the HTTP side of its request: what was delivered, and how it ended."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ids import (
    Incarnation,
    RequestId,
    TenantHash,
    keyed_request_id,
    new_request_id,
    tenant_hash,
)
from proto.ledger import Mode, Usage
from proto.sampling import SamplingParams
from services.gateway.api import Call, Delta, Live
from services.gateway.prompt import PromptIds
from tests.sim.kernel import Domain
from tests.sim.ports import CARD, Judge, tokens_of
from tests.sim.scenario import AskPlan, Body

if TYPE_CHECKING:
    from services.gateway.api import Calls
    from tests.sim.process import Life
    from tests.sim.world import World

__all__ = ["Ask", "Ending"]

_SLOW_S = 5.0
"""How long the HTTP side waits for a client that does not read."""
_PATIENCE_S = 1.0
"""How long a client that comes again knocks at a gateway that is not there."""


class Ending(Enum):
    """How a request ended for its client."""

    NONE = "none"
    """It did not."""
    REFUSED = "refused"
    """Nobody listened at the gateway."""
    ANSWERED = "answered"
    FAILED = "failed"
    """With a typed error."""
    LEFT = "left"
    """The client went away, or read too slowly."""
    CUT = "cut"
    """The gateway died."""


class _Slow(Exception):
    """The client does not read."""


@asynccontextmanager
async def _opened(calls: Calls, call: Call) -> AsyncIterator[Live]:
    """Open a call; if the block does not come to its end, the reader leaves."""
    live = await calls.open(call)
    ended = False
    try:
        yield live
        ended = True
    finally:
        if not ended:
            await live.cancel("not_delivered")


@dataclass(eq=False)
class Ask:
    """One HTTP request, as its client lives it."""

    plan: AskPlan
    seed: int
    rid: RequestId = RequestId("")
    """Of the request that it stands for; with a key, as far as it is known."""
    gateway: Incarnation = Incarnation("")
    """Of the process that it spoke to."""
    ending: Ending = Ending.NONE
    code: ErrorCode | None = None
    detail: str = ""
    got: list[int] = field(default_factory=list)
    text: str = ""
    finish: FinishReason | None = None
    usage: Usage | None = None
    opened: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    deadline_s: float = 0.0
    """Virtual time."""
    left_s: float | None = None
    heard_s: float = 0.0
    """When the last part of the answer came."""
    domain: Domain | None = None
    handler: asyncio.Task[None] | None = None
    happened: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for event in ("sent", "token", "left", "ended", "enough"):
            self.happened[event] = asyncio.Event()

    @property
    def tenant(self) -> TenantHash:
        """Who asks."""
        return tenant_hash(self.plan.tenant)

    @property
    def digest(self) -> str:
        """The identity of what is asked."""
        return f"{self.plan.tenant}/{self.plan.body.number}"

    @cached_property
    def input_ids(self) -> bytes:
        """The prompt."""
        return prompt_of(self.seed, self.plan.body)

    @cached_property
    def judge(self) -> Judge:
        """Follows what this client is given."""
        body = self.plan.body
        return Judge(
            self.input_ids,
            body.max_tokens,
            no_stop=body.no_stop,
            temperature=body.temperature,
        )

    def end(self, world: World, ending: Ending) -> None:
        """Note the end, once."""
        if self.ending is Ending.NONE:
            self.ending = ending
            self.ended_s = world.loop.time()
            self.happened["ended"].set()
            told = f"{self.plan.number} {ending.value} {self.code} {len(self.got)}"
            world.trace.note("client", f"{self.rid} {told}")

    async def run(self, world: World) -> None:
        """Ask when it is time, and stay until it has ended; runs outside of all processes."""
        await self._wait_for_turn(world)
        life = await self._knock(world)
        if life is None or life.service is None or life.service.calls is None:
            self.end(world, Ending.REFUSED)
            self.happened["sent"].set()
            return
        self.began_s = world.loop.time()
        self.deadline_s = self.began_s + self.plan.deadline_s
        self.domain, self.gateway = life.domain, life.incarnation
        call = self._call(life)
        self.rid = call.rid
        world.trace.note("client", f"{self.rid} asks {life.domain.name}: {self.plan}")
        self.handler = world.loop.spawn(
            life.domain, self._handle(world, life.service.calls, call), "http"
        )
        life.handlers.append(self.handler)
        self.happened["sent"].set()
        if self.plan.leave_after_s is not None or self.plan.leave_at_token is not None:
            world.loop.spawn(None, self._leave_in_time(world), "leave")

    def leave(self, world: World) -> bool:
        """Close the connection, as the client; the HTTP side cancels its work."""
        if self.ending is not Ending.NONE or self.handler is None or self.left_s is not None:
            return False
        if self.domain is not None and not self.domain.alive:
            return False
        self.left_s = world.loop.time()
        world.trace.note("client", f"{self.rid} {self.plan.number} leaves")
        # A handler that has not taken its first step has nothing to say.
        self.handler.add_done_callback(lambda _: self.end(world, Ending.LEFT))
        self.handler.cancel()
        return True

    async def _wait_for_turn(self, world: World) -> None:
        after = self.plan.after
        if after is None:
            await asyncio.sleep(self.plan.at_s)
            return
        first = world.asks[after.number]
        event = "ended" if after.event == "left" else after.event
        try:
            async with asyncio.timeout(self.plan.at_s):
                await first.happened[event].wait()
                await asyncio.sleep(after.delay_s)
        except TimeoutError:
            return

    async def _knock(self, world: World) -> Life | None:
        """Return the gateway; one that comes again tries the other if its own is not there."""
        wanted = self.plan.gateway
        until = world.loop.time() + _PATIENCE_S
        while True:
            life = world.processes[f"gateway-{wanted}"].life
            serves = life is not None and not life.stopping and life.service is not None
            if serves and life is not None and life.service is not None and life.service.ready():
                return life
            if self.plan.after is None or world.loop.time() > until:
                return None
            wanted = 1 - wanted
            await asyncio.sleep(0.2)

    def _call(self, life: Life) -> Call:
        plan = self.plan
        body = plan.body
        rid = new_request_id(life.clock.unix_ms(), life.clock.entropy)
        if plan.key is not None:
            rid = keyed_request_id(self.tenant, plan.key, 0)
        return Call(
            rid=rid,
            tenant=self.tenant,
            model=CARD.model,
            prompt=PromptIds(self.input_ids),
            sampling=SamplingParams(
                max_tokens=body.max_tokens,
                temperature=body.temperature,
                frequency_penalty=body.penalty,
                ignore_eos=body.no_stop,
            ),
            digest=self.digest,
            deadline_ms=life.clock.unix_ms() + int(plan.deadline_s * 1000),
            mode=Mode(plan.mode) if plan.mode else None,
            key=plan.key,
            recover=plan.recover,
            # Three classes, drawn from what is fixed already: seeds keep their stories.
            priority=body.prompt_tokens % 3 - 1,
        )

    async def _handle(self, world: World, calls: Calls, call: Call) -> None:
        """What the HTTP side of the gateway does with a request."""
        try:
            async with (
                _opened(calls, call) as live,
                aclosing(live.deltas(partial(self._offered, world))) as deltas,
            ):
                self.opened = True
                self.rid = live.rid
                async for delta in deltas:
                    self._take(world, delta)
                    if not live.pending:
                        await self._read_slowly()
        except PdbusError as error:
            self.code, self.detail = error.code, error.detail
            self.end(world, Ending.FAILED)
        except _Slow:
            self.left_s = world.loop.time()
            self.end(world, Ending.LEFT)
        except asyncio.CancelledError:
            # Its client has left, or the gateway shuts down and says so.
            if self.left_s is None:
                self.code = ErrorCode.DRAINING
            self.end(world, Ending.LEFT if self.left_s is not None else Ending.FAILED)
            raise
        else:
            if self.finish is None:
                world.trace.violate("I1", f"{self.rid}: the answer ended without a finish")
            self.end(world, Ending.ANSWERED)

    def _offered(self, world: World, delta: Delta) -> bool:
        """Take what arrives while this client waits, as a writer does whose client keeps up."""
        slow = self.plan.pace_s or self.plan.stall_at_token is not None
        if slow or delta.finish is not None:
            return False
        self._take(world, delta)
        return True

    async def _read_slowly(self) -> None:
        if self.plan.pace_s:
            await asyncio.sleep(self.plan.pace_s)
        stall = self.plan.stall_at_token
        if stall is not None and len(self.got) >= stall and self.finish is None:
            await asyncio.sleep(_SLOW_S)
            raise _Slow

    async def _leave_in_time(self, world: World) -> None:
        if self.plan.leave_after_s is not None:
            await asyncio.sleep(self.plan.leave_after_s)
        else:
            await self.happened["enough"].wait()
            await asyncio.sleep(world.rng.random() * 0.005)
        self.leave(world)

    def _take(self, world: World, delta: Delta) -> None:
        before = len(self.got)
        self.got.extend(tokens_of(delta.ids))
        self.text += delta.text
        self.heard_s = world.loop.time()
        if delta.finish is not None:
            self.finish, self.usage = delta.finish, delta.usage
        world.checks.answers.delivered(self, before)
        if self.got:
            self.happened["token"].set()
        if len(self.got) in {self.plan.leave_at_token, self.plan.body.max_tokens}:
            self.happened["enough"].set()


def prompt_of(seed: int, body: Body) -> bytes:
    """Return the token ids of a body."""
    rng = random.Random(f"prompt {seed} {body.number}")
    count = body.prompt_tokens
    return struct.pack(f"<{count}I", *(rng.getrandbits(15) for _ in range(count)))
