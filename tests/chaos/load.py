"""What clients do: ask, read fast or slowly, leave at any moment, ask again with the same key.

Nothing is retried and nothing is hidden: each submission leaves a `Told`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.support.http_client import Exchange, Reply, chat_body

__all__ = ["Ask", "Load", "Mix", "Told"]

PATH = "/v1/chat/completions"
_SMALL = 1024
_LONG_TOKENS = 1_500
_STUCK_S = 17.0
_BACK_OFF_S = 1.0
_WORDS = ("river", "lantern", "copper", "meadow", "signal", "harbor", "winter", "velvet", "engine")


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, as it stands in the body."""

    number: int
    text: str
    max_tokens: int
    stream: bool
    ignore_eos: bool
    key: str | None = None

    def body(self) -> bytes:
        """The HTTP body."""
        fields: dict[str, object] = {"max_tokens": self.max_tokens, "stream": self.stream}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.stream:
            fields["stream_options"] = {"include_usage": True}
        return json.dumps(chat_body(self.text, **fields)).encode()


@dataclass(frozen=True, slots=True)
class Manner:
    """How one submission is carried out."""

    gateway: int
    wait_s: float = 0.0
    """Before it is sent."""
    leave: str = ""
    """`after` some seconds, or at the first `token`; empty: it stays."""
    leave_s: float = 0.0
    pace: str = ""
    """`slow` reads in sips; `stuck` stops reading after the first token."""


@dataclass(slots=True)
class Told:
    """What one submission came to."""

    ask: Ask
    manner: Manner
    sent_ms: float
    """Unix time."""
    ended_ms: float = 0.0
    left_ms: float | None = None
    """When the client hung up."""
    refused: bool = False
    """Nobody accepted the connection."""
    silent: bool = False
    """The last moment at which an answer may come has passed."""
    saw_token: bool = False
    trace: str = ""
    """Its trace id, by which records and events of a request are found that told no id."""
    reply: Reply = field(default_factory=Reply)

    @property
    def turned_away(self) -> bool:
        """Whether the client was told to come back later."""
        return self.refused or "retry-after" in self.reply.headers or self.reply.status == 503

    @property
    def rid(self) -> str:
        """The request id, as far as the client knows it."""
        for event in self.reply.events if self.reply.is_stream else ():
            if isinstance(event, dict) and str(event.get("id", "")).startswith("chatcmpl-"):
                return str(event["id"]).removeprefix("chatcmpl-")
        if self.reply.status == 200 and self.reply.whole and not self.reply.is_stream:
            return str(self.reply.json["id"]).removeprefix("chatcmpl-")
        return ""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of what clients do, each from 0 to 1."""

    stream: float = 0.65
    keyed: float = 0.2
    leave: float = 0.25
    slow: float = 0.05
    stuck: float = 0.01
    longest: int = 500
    """Words of the longest prompts; the scripted model takes some seven tokens for each."""


class Load:
    """Some clients that ask one question after the other.

    Args:
        ports: HTTP ports of the gateways.
        rng: all choices.
        patience_s: longest time that an answer may take before it counts as silence.
        pause_s: mean pause of a client between two questions.
    """

    def __init__(
        self,
        ports: Sequence[int],
        rng: random.Random,
        *,
        patience_s: float,
        mix: Mix | None = None,
        pause_s: float = 0.3,
    ) -> None:
        self.told: list[Told] = []
        self._ports = ports
        self._rng = rng
        self._patience_s = patience_s
        self._mix = mix or Mix()
        self._pause_s = pause_s
        self._numbers = 0
        self._stopping = asyncio.Event()

    async def run(self, clients: int) -> None:
        """Let clients ask until `stop`, and return when the last of them has its answer."""
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client())

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopping.set()

    async def submit(self, ask: Ask, manner: Manner) -> Told:
        """Carry out one submission."""
        if manner.wait_s:
            await asyncio.sleep(manner.wait_s)
        told = Told(ask, manner, now_ms(), trace=f"{self._rng.getrandbits(128):032x}")
        self.told.append(told)
        headers = {"traceparent": f"00-{told.trace}-{self._rng.getrandbits(64):016x}-01"}
        if ask.key is not None:
            headers["idempotency-key"] = ask.key
        try:
            exchange = await Exchange.open(
                self._ports[manner.gateway],
                "POST",
                PATH,
                ask.body(),
                headers=headers,
                receive_bytes=_SMALL if manner.pace else None,
            )
        except OSError:
            told.refused, told.ended_ms = True, now_ms()
            return told
        told.reply = exchange.reply
        try:
            await self._read(exchange, told)
        except TimeoutError:
            told.silent = True
        finally:
            exchange.hang_up()
        told.ended_ms = now_ms()
        told.saw_token = told.saw_token or b'"content"' in told.reply.body
        return told

    def draw(self) -> Ask:
        """Return a question that nobody has asked before."""
        rng, mix = self._rng, self._mix
        self._numbers += 1
        words = rng.choice((4, 8, 30, 100, rng.randint(1, mix.longest)))
        text = f"{self._numbers}: " + " ".join(rng.choices(_WORDS, k=words))
        return Ask(
            number=self._numbers,
            text=text,
            max_tokens=rng.choice((1, 2, 8, 20, 40, rng.randint(1, 120))),
            stream=rng.random() < mix.stream,
            ignore_eos=rng.random() < 0.5,
            key=f"key-{self._numbers}" if rng.random() < mix.keyed else None,
        )

    async def _client(self) -> None:
        while not self._stopping.is_set():
            ask = self.draw()
            if self._rng.random() < self._mix.stuck:
                told = await self._get_stuck(ask)
            elif ask.key is None:
                told = await self.submit(ask, self._manner(ask))
            else:
                told = await self._resubmit(ask)
            # As a client should that was told to come back later.
            pause_s = _BACK_OFF_S if told.turned_away else self._pause_s
            try:
                async with asyncio.timeout(self._rng.expovariate(1 / pause_s)):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _get_stuck(self, ask: Ask) -> Told:
        """Ask for so much that it cannot wait in buffers, and stop reading."""
        long = replace(ask, key=None, stream=True, ignore_eos=True, max_tokens=_LONG_TOKENS)
        return await self.submit(long, Manner(self._any_gateway(), pace="stuck"))

    async def _resubmit(self, ask: Ask) -> Told:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(self.submit(ask, self._manner(ask)))
            for _ in range(self._rng.randint(1, 3)):
                wait_s = self._rng.choice((0.0, 0.05, self._rng.uniform(0, 1.5)))
                manner = Manner(gateway=self._any_gateway(), wait_s=wait_s)
                group.create_task(self.submit(ask, manner))
        return first.result()

    def _manner(self, ask: Ask) -> Manner:
        rng, mix = self._rng, self._mix
        draw = rng.random()
        leave, leave_s, pace = "", 0.0, ""
        if draw < mix.leave:
            leave = "token" if ask.stream and rng.random() < 0.4 else "after"
            leave_s = rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 1.0)))
        elif ask.stream and draw < mix.leave + mix.slow:
            pace = "slow"
        return Manner(self._any_gateway(), leave=leave, leave_s=leave_s, pace=pace)

    def _any_gateway(self) -> int:
        return self._rng.randrange(len(self._ports))

    async def _read(self, exchange: Exchange, told: Told) -> None:
        manner = told.manner
        if manner.leave:
            await self._read_and_leave(exchange, told)
        elif manner.pace == "slow":
            await exchange.sip(300, 0.02, self._patience_s)
        elif manner.pace == "stuck":
            await self._stop_reading(exchange)
        else:
            await exchange.finish(self._patience_s)

    async def _stop_reading(self, exchange: Exchange) -> None:
        try:
            await exchange.until(b'"content"', self._patience_s)
        except (AssertionError, ConnectionError):
            return  # it ended without a token
        await asyncio.sleep(_STUCK_S)
        await exchange.finish(self._patience_s)

    async def _read_and_leave(self, exchange: Exchange, told: Told) -> None:
        manner = told.manner
        if manner.leave == "token":
            try:
                await exchange.until(b'"content"', self._patience_s)
            except (AssertionError, ConnectionError):
                return  # it ended without a token
            told.saw_token = True
        try:
            async with asyncio.timeout(manner.leave_s):
                await exchange.finish(self._patience_s)
        except TimeoutError:
            told.left_ms = now_ms()


def now_ms() -> float:
    """Return the Unix time in milliseconds."""
    return time.time_ns() / 1e6
