"""One chaos run: start, load, hurt, rest, judge."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proto.errors import ErrorCode
from proto.events import Event
from proto.workers import WorkerState
from tests.chaos.faults import Injector
from tests.chaos.judge.clients import check_clients, outcome_of
from tests.chaos.judge.engines import check_engines
from tests.chaos.judge.evidence import Evidence, Verdict, keep
from tests.chaos.judge.figures import Figures, figures_of
from tests.chaos.judge.ledger import check_ledger
from tests.chaos.load import Ask, Load, Manner, Told
from tests.chaos.world.hostile import open_hostile
from tests.chaos.world.logs import tracebacks
from tests.chaos.world.oracle import Oracle
from tests.chaos.world.stack import ON_TCP, ChaosStack, Size, open_stack
from tests.chaos.world.watcher import Watcher, open_watcher

__all__ = ["Options", "chaos", "environment", "rest", "run"]

DEADLINE_S = 20.0
_PATIENCE_S = DEADLINE_S + 25.0
_REST_S = 75.0
_TOLD_S = 3.0
"""How long after its end a lease is told of as free at most: the record is clean before that."""
_LAST_ASKS = 8
_LAST_TRIES = 4

PROFILE = {"step_s": 0.004, "prefill_token_s": 0.0001, "chunk_tokens": 256}
DECODE_STEP_S = 0.012
TCP = ("--kv-transports", "tcp")
FAULTS: list[dict[str, Any]] = [
    {"when": "transfer", "action": "stall", "seconds": 0.4, "probability": 0.15},
    {"when": "prefill", "action": "stall", "seconds": 0.4, "probability": 0.1},
    {"when": "prefill", "action": "error", "probability": 0.004},
    {"when": "decode", "action": "error", "probability": 0.004, "after_tokens": 5},
]
"""Widened phases, so that faults meet requests in all of them, and some errors of the engines."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is."""

    seconds: float
    """How long faults are made; start and rest come on top."""
    seed: int
    folder: Path
    """For logs and everything else that the stack writes."""
    clients: int = 24
    gap_s: float = 2.0
    """Mean time between two faults."""
    script: Sequence[dict[str, Any]] = tuple(FAULTS)
    """Faults of the scripted engines."""


def environment(faults: Sequence[dict[str, Any]] = (), *, deadline_s: float) -> dict[str, str]:
    """Return the variables of a stack whose engines take their time."""
    decode = {"profile": PROFILE | {"step_s": DECODE_STEP_S}, "faults": list(faults)}
    return {
        "PDBUS_PREFILL_SCRIPT": json.dumps({"profile": PROFILE, "faults": list(faults)}),
        "PDBUS_DECODE_SCRIPT": json.dumps(decode),
        "PDBUS_PREFILL_SLOTS": "8",
        "PDBUS_DECODE_SLOTS": "8",
        "PDBUS_GATEWAY_REQUEST_TIMEOUT_S": str(deadline_s),
        "PDBUS_GATEWAY_SLOW_CLIENT_S": "3",
    }


async def run(options: Options) -> Figures:
    """Carry out a run and judge it."""
    env = environment(options.script, deadline_s=DEADLINE_S)
    async with (
        open_stack(options.folder, Size(), env=env, more={ON_TCP: TCP}) as stack,
        open_watcher(stack.nats_url) as watcher,
    ):
        evidence = await chaos(stack, watcher, options)
    keep(evidence, options.folder / "evidence")
    verdict = Verdict()
    check_clients(evidence, verdict)
    check_ledger(evidence, verdict)
    check_engines(evidence, verdict)
    return figures_of(evidence, verdict)


async def chaos(stack: ChaosStack, watcher: Watcher, options: Options) -> Evidence:
    """Load and hurt a stack, let it rest, and gather what it left."""
    rng = random.Random(options.seed)
    load = Load(stack.gateway_ports, random.Random(rng.random()), patience_s=_PATIENCE_S)
    injector = Injector(stack, random.Random(rng.random()), gap_s=options.gap_s)
    async with (
        open_hostile(stack.nats_url, random.Random(rng.random())) as hostile,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(load.run(options.clients))
        await injector.run(options.seconds)
        stack.heal()
        # Long enough for the last of the killed to be used again.
        await asyncio.sleep(4)
        load.stop()
    print(f"copies sent by the hostile client: {hostile.sent.total()}")
    print(f"faults that met no target: {dict(injector.skipped) or 'none'}")
    late = await stack.all_ready(_REST_S)
    await rest(watcher, _REST_S)
    last = await _ask_again(stack, rng)
    await rest(watcher, _REST_S)
    await asyncio.sleep(_TOLD_S)
    late += [
        f"a question at rest: {told.reply.status} {told.reply.error}"
        for told in last
        if outcome_of(told) not in {"answered", "error engine_error"}
    ]
    return await _gather(stack, watcher, [*load.told, *last], injector, late)


async def rest(watcher: Watcher, timeout_s: float) -> bool:
    """Wait until nothing is held and everything is proved; the checks name what is not."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while True:
        busy = [
            beat.instance
            for beat in watcher.beats.values()
            if beat.leases or (beat.load and (beat.load.kv_used_tokens or beat.load.running))
        ]
        records = await watcher.records()
        watcher.compare(records)
        unproved = [
            record.rid
            for record in records.values()
            if not record.ended
            or (record.placement and not (record.cleaned.src and record.cleaned.dst))
        ]
        if not busy and not unproved:
            return True
        if loop.time() >= until:
            return False
        await asyncio.sleep(0.5)


async def _ask_again(stack: ChaosStack, rng: random.Random) -> list[Told]:
    """Ask some questions at rest, until each is answered: everything must work again."""
    load = Load(stack.gateway_ports, rng, patience_s=_PATIENCE_S)

    async def ask(number: int) -> None:
        question = Ask(-number, f"last {number}", 8, stream=number % 2 == 0, ignore_eos=True)
        for _ in range(_LAST_TRIES):
            told = await load.submit(question, Manner(number % len(stack.gateway_ports)))
            # Only the engines' own scripted errors may come in between.
            if (told.reply.error or {}).get("code") != ErrorCode.ENGINE_ERROR:
                return

    await asyncio.gather(*(ask(number) for number in range(1, _LAST_ASKS + 1)))
    return load.told


async def _gather(
    stack: ChaosStack, watcher: Watcher, told: list[Told], injector: Injector, late: list[str]
) -> Evidence:
    oracle = Oracle(stack.model_path)
    record = stack.record
    slots = {slot.instance: slot.name for slot in record.slots}
    beats = [beat for beat in watcher.beats.values() if beat.instance in slots]
    late += [
        f"{slots[beat.instance]}: {beat.state} {beat.reason}"
        for beat in beats
        if beat.state is not WorkerState.READY
    ]
    return Evidence(
        told=told,
        right=lambda t: oracle.answer(t.ask.text, t.ask.max_tokens, ignore_eos=t.ask.ignore_eos),
        records=await watcher.records(),
        events=_merged(await watcher.stored_events(), watcher.heard),
        beats=beats,
        listed=list(watcher.listed.values()),
        turned=watcher.turned,
        strikes=injector.strikes,
        ready=[(slots.get(i, i), ms) for i, ms in watcher.ready_ms.values()],
        slots=slots,
        restarts={slot.name: slot.restarts for slot in record.slots},
        late=late,
        tracebacks=tracebacks(stack.running.state_dir / "logs"),
        deadline_s=DEADLINE_S,
    )


def _merged(stored: list[Event], heard: list[Event]) -> list[Event]:
    """Return each fact once: what was heard and not stored counts too."""
    found = {(e.dedup_key, e.at_ms): e for e in (*heard, *stored)}
    return sorted(found.values(), key=lambda event: event.at_ms)
