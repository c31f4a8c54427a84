"""A client and the HTTP side of its request: what was delivered, and how it ended."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ids import RequestId, new_request_id, tenant_hash
from proto.ledger import Usage
from proto.sampling import SamplingParams
from services.gateway.api import Call, Calls, Live
from tests.sim.kernel import Domain
from tests.sim.ports.engine import CARD, expected_answer
from tests.sim.scenario import RequestPlan

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Ending", "Request"]


@asynccontextmanager
async def _opened(calls: Calls, call: Call) -> AsyncIterator[Live]:
    """Open a call; if the block does not come to its end, the request is given up."""
    live = await calls.open(call)
    ended = False
    try:
        yield live
        ended = True
    finally:
        if not ended:
            await live.cancel("not_delivered")


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
    """The client went away."""
    CUT = "cut"
    """The gateway died."""


@dataclass(eq=False)
class Request:
    """One request, as its client lives it."""

    plan: RequestPlan
    rid: RequestId = RequestId("")
    input_ids: bytes = b""
    ending: Ending = Ending.NONE
    code: ErrorCode | None = None
    detail: str = ""
    got: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: Usage | None = None
    opened: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    deadline_s: float = 0.0
    """Virtual time."""
    left_s: float | None = None
    domain: Domain | None = None
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, world: World, ending: Ending) -> None:
        """Note the end, once."""
        if self.ending is Ending.NONE:
            self.ending = ending
            self.ended_s = world.loop.time()
            world.trace.note("client", f"{self.rid} {ending.value} {self.code} {len(self.got)}")

    async def run(self, world: World) -> None:
        """Send the request to its gateway, and stay until it has ended; runs outside."""
        await asyncio.sleep(self.plan.at_s)
        self.began_s = world.loop.time()
        self.deadline_s = self.began_s + self.plan.deadline_s
        process = world.processes[f"gateway-{self.plan.gateway}"]
        life = process.life
        service = life.service if life else None
        if (
            life is None
            or life.stopping
            or service is None
            or service.calls is None
            or not service.ready()
        ):
            self.end(world, Ending.REFUSED)
            return
        self.domain = life.domain
        rng = world.rng
        self.rid = new_request_id(life.clock.unix_ms(), life.clock.entropy)
        count = self.plan.prompt_tokens
        self.input_ids = struct.pack(f"<{count}I", *(rng.getrandbits(15) for _ in range(count)))
        call = Call(
            rid=self.rid,
            tenant=tenant_hash("sim"),
            model=CARD.model,
            input_ids=self.input_ids,
            prompt_tokens=count,
            sampling=SamplingParams(
                max_tokens=self.plan.max_tokens, temperature=0.0, ignore_eos=self.plan.no_stop
            ),
            digest="0" * 64,
            deadline_ms=life.clock.unix_ms() + int(self.plan.deadline_s * 1000),
        )
        world.trace.note("client", f"{self.rid} asks {process.name}: {self.plan}")
        handler = world.loop.spawn(life.domain, self._handle(world, service.calls, call), "http")
        life.handlers.append(handler)
        if self.plan.cancel_after_s is not None or self.plan.cancel_at_token is not None:
            world.loop.spawn(life.domain, self._leave(world, handler), "leave")

    async def _handle(self, world: World, calls: Calls, call: Call) -> None:
        """What the HTTP side of the gateway does with a request."""
        try:
            async with _opened(calls, call) as live, aclosing(live.deltas()) as deltas:
                self.opened = True
                async for delta in deltas:
                    self._take(world, delta.ids)
                    if delta.finish is not None:
                        self.finish, self.usage = delta.finish, delta.usage
        except PdbusError as error:
            self.code, self.detail = error.code, error.detail
            self.end(world, Ending.FAILED)
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

    async def _leave(self, world: World, handler: asyncio.Task[None]) -> None:
        """Close the connection, as the client; the HTTP side cancels its work."""
        if self.plan.cancel_after_s is not None:
            await asyncio.sleep(self.plan.cancel_after_s)
        else:
            await self.enough.wait()
            await asyncio.sleep(world.rng.random() * 0.005)
        if self.ending is not Ending.NONE:
            return
        self.left_s = world.loop.time()
        world.trace.note("client", f"{self.rid} leaves")
        handler.cancel()

    def _take(self, world: World, ids: bytes) -> None:
        before = len(self.got)
        self.got.extend(struct.unpack(f"<{len(ids) // 4}I", ids))
        world.checks.delivered(self, before)
        if len(self.got) == self.plan.cancel_at_token or len(self.got) == self.plan.max_tokens:
            self.enough.set()

    @cached_property
    def right(self) -> tuple[list[int], FinishReason]:
        """The right answer, and how it ends."""
        plan = self.plan
        return expected_answer(self.input_ids, plan.max_tokens, no_stop=plan.no_stop)
