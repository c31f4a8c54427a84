"""One stack from its first process to its last: prepare, start, watch, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from libs.clock import SystemClock
from ops.cli.errors import CommandError
from ops.cli.stack.broker import broker_slot
from ops.cli.stack.control import Order, take_orders
from ops.cli.stack.layout import HOST, Address, ModelChoice, StackOptions, service_slots
from ops.cli.stack.ports import free_port, is_free
from ops.cli.stack.prepare import prepare_model
from ops.cli.stack.process import adopt_orphans
from ops.cli.stack.record import StackRecord, StackState, hold_lock, store
from ops.cli.stack.supervisor import Supervisor

__all__ = ["Reporter", "serve"]

READY_TIMEOUT_S = 600.0
"""Longest time from the first process until the stack is ready; loading a model takes a while."""


class Reporter(Protocol):
    """Where progress is shown."""

    def say(self, text: str) -> None:
        """Show one sentence that stays."""
        ...

    def show(self, record: StackRecord) -> None:
        """Show the state of all processes."""
        ...


async def serve(
    options: StackOptions,
    reporter: Reporter,
    when_ready: Callable[[StackRecord], Awaitable[bool]],
) -> None:
    """Run a stack until a signal comes, or until `when_ready` returns False.

    Raises:
        CommandError: the state folder is in use, the model cannot be had, or a process cannot
            start. No process is left behind.
    """
    with hold_lock(options.state_dir):
        adopt_orphans()
        options.log_dir.mkdir(exist_ok=True)
        stack = _Stack(options, reporter)
        await stack.run(when_ready)


class _Stack:
    """The parts of one stack and its record."""

    def __init__(self, options: StackOptions, reporter: Reporter) -> None:
        self._options = options
        self._reporter = reporter
        self._supervisor: Supervisor | None = None
        # A scope without an end of its own: a signal ends it, wherever the work stands.
        self._life = asyncio.timeout(None)
        self._end = StackState.STOPPED
        self._asked = False
        nats_port = free_port()
        self._nats_port = nats_port
        self._address = Address(f"nats://{HOST}:{nats_port}", _gateway_ports(options))
        self._record = StackRecord(
            supervisor=os.getpid(),
            state=StackState.STARTING,
            nats_url=self._address.nats_url,
            urls=tuple(f"http://{HOST}:{port}" for port in self._address.gateway_ports),
            model=options.model,
            engine=options.engine,
            started_ms=time.time_ns() // 1_000_000,
        )

    async def run(self, when_ready: Callable[[StackRecord], Awaitable[bool]]) -> None:
        """Live from the first process to the last."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_to_stop)
        store(self._options.state_dir, self._record)
        try:
            async with take_orders(self._options.state_dir, self._obey), self._life:
                await self._work(when_ready)
        except TimeoutError:
            if not self._life.expired():
                raise
        except CommandError as error:
            self._end = StackState.FAILED
            self._put(state=StackState.FAILED, error=error.text)
            raise
        finally:
            if self._supervisor is not None:
                await self._supervisor.stop()
            self._put(state=self._end)

    async def _work(self, when_ready: Callable[[StackRecord], Awaitable[bool]]) -> None:
        options = self._options
        model = await prepare_model(
            options.model,
            root=options.models_dir,
            engine=options.engine,
            say=self._reporter.say,
        )
        self._put(model=model.name)
        supervisor = self._start(model)
        await supervisor.wait_ready(READY_TIMEOUT_S)
        self._put(state=StackState.READY)
        if await when_ready(self._record):
            await asyncio.Event().wait()

    def _start(self, model: ModelChoice) -> Supervisor:
        options = self._options
        broker = broker_slot(options.state_dir, self._nats_port)
        services = service_slots(options, model, self._address, SystemClock().entropy)
        supervisor = Supervisor(
            [broker, *services],
            log_dir=options.log_dir,
            changed=self._slots_changed,
            grace_s=options.grace_s,
        )
        self._supervisor = supervisor
        supervisor.start()
        return supervisor

    def _obey(self, order: Order) -> None:
        if self._supervisor is None:
            raise CommandError("the stack is being prepared")
        self._supervisor.restart(order.slot)
        self._reporter.say(f"{order.slot}: to be restarted")

    def _asked_to_stop(self) -> None:
        if self._asked and self._supervisor is not None:
            self._supervisor.kill()
        if not self._asked:
            self._asked = True
            self._put(state=StackState.STOPPING)
            grace = f"{self._options.grace_s:g} s"
            self._reporter.say(f"stopping; running requests have {grace} (again: stop at once)")
            self._life.reschedule(asyncio.get_running_loop().time())

    def _slots_changed(self) -> None:
        if self._supervisor is not None:
            self._put(slots=self._supervisor.slots)
            self._reporter.show(self._record)

    def _put(self, **changes: object) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        store(self._options.state_dir, self._record)


def _gateway_ports(options: StackOptions) -> tuple[int, ...]:
    if options.port == 0:
        return tuple(free_port() for _ in range(options.gateways))
    ports = tuple(options.port + number for number in range(options.gateways))
    for port in ports:
        if not is_free(port):
            message = f"port {port} on {HOST} is in use; choose another one with --port"
            raise CommandError(message)
    return ports
