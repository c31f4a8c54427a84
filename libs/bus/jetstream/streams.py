"""JetStream by plain requests: declared streams, acknowledged writes, paged reads.

Reads use batched direct gets, so that no consumer is ever left behind on the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from libs.bus.api import BusDown, BusError, NoResponders, RequestTimeout
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.clock import Clock
from libs.telemetry import get_logger

__all__ = [
    "Ack",
    "ApiFault",
    "StreamSpec",
    "direct_subject",
    "ensure_stream",
    "is_wrong_revision",
    "read_stream",
    "sequence_of",
]

_NOT_FOUND = 404
_WRONG_REVISION = frozenset({10071, 10164})
_PAGE = 256
_STATUS = "Status"
_END_OF_PAGE = "204"
_NO_MESSAGES = "404"
_NO_RESPONDERS = "503"
_PAGE_TIMEOUT_S = 3.0
_TRY_TIMEOUT_S = 2.0
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 0.5


class ApiFault(msgspec.Struct, frozen=True):
    """Why JetStream refused."""

    code: int
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct, frozen=True):
    """JetStream's answer to a write."""

    seq: int = 0
    duplicate: bool = False
    error: ApiFault | None = None


class _StreamConfig(msgspec.Struct, frozen=True):
    subjects: list[str] = []
    max_age: int = 0
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    storage: str = ""
    allow_direct: bool = False


class _StreamReply(msgspec.Struct, frozen=True):
    config: _StreamConfig | None = None
    error: ApiFault | None = None


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as pdbus declares it: limits and direct reads. Times are seconds."""

    name: str
    subjects: tuple[str, ...]
    description: str
    max_age_s: float
    max_bytes: int = -1
    per_subject: int = -1
    discard_new: bool = False
    duplicate_window_s: float = 120.0
    replicas: int = 1
    record: bool = False
    """Whether it is the stream of a KV bucket (roll-ups allowed, deletions denied)."""
    in_memory: bool = False
    """Keep it off the disk; it is lost when the server ends."""

    def to_config(self) -> StreamConfig:
        """Return it in nats-py's words."""
        return StreamConfig(
            name=self.name,
            description=self.description,
            subjects=list(self.subjects),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.MEMORY if self.in_memory else StorageType.FILE,
            discard=DiscardPolicy.NEW if self.discard_new else DiscardPolicy.OLD,
            max_age=self.max_age_s,
            max_bytes=self.max_bytes,
            max_msgs=-1,
            max_consumers=-1,
            max_msgs_per_subject=self.per_subject,
            num_replicas=self.replicas,
            duplicate_window=min(self.duplicate_window_s, self.max_age_s),
            allow_direct=True,
            allow_rollup_hdrs=self.record,
            deny_delete=self.record,
        )


_decode_reply = msgspec.json.Decoder(_StreamReply).decode


async def ensure_stream(link: Link, spec: StreamSpec, clock: Clock, *, timeout_s: float) -> None:
    """Make sure that a stream exists; safe when several processes do it at once.

    JetStream may still be starting, or without a leader: this tries until `timeout_s` is over. An
    existing stream with another configuration is used as it is, with a warning.

    Raises:
        BusDown: it does not exist, and could not be made in time.
    """
    deadline = clock.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    reason = "no answer"
    while True:
        left = deadline - clock.monotonic()
        if left <= 0:
            raise BusDown(f"stream {spec.name} is not available: {reason}")
        try:
            fault = await _find_or_create(link, spec, min(left, _TRY_TIMEOUT_S))
            if fault is None:
                return
            reason = fault.description
        except NoResponders:
            reason = "JetStream does not answer"
        except (BusDown, RequestTimeout) as error:
            reason = str(error)
        await clock.sleep(min(wait_s, max(0.0, deadline - clock.monotonic())))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


async def _find_or_create(link: Link, spec: StreamSpec, timeout_s: float) -> ApiFault | None:
    found = await _api(link, f"STREAM.INFO.{spec.name}", b"", timeout_s)
    if found.config is not None:
        _compare(found.config, spec)
        return None
    if found.error is None or found.error.code != _NOT_FOUND:
        return found.error
    body = json.dumps(spec.to_config().as_dict()).encode()
    # A fault here may mean that another process was faster: the next look finds its stream.
    return (await _api(link, f"STREAM.CREATE.{spec.name}", body, timeout_s)).error


async def _api(link: Link, verb: str, body: bytes, timeout_s: float) -> _StreamReply:
    return _decode_reply((await link.ask(f"$JS.API.{verb}", body, None, timeout_s)).data)


def _compare(found: _StreamConfig, spec: StreamSpec) -> None:
    wanted = {
        "subjects": sorted(spec.subjects),
        "max_age_s": spec.max_age_s,
        "per_subject": spec.per_subject,
        "storage": "memory" if spec.in_memory else "file",
        "allow_direct": True,
    }
    there = {
        "subjects": sorted(found.subjects),
        "max_age_s": found.max_age / 1e9,
        "per_subject": found.max_msgs_per_subject,
        "storage": found.storage,
        "allow_direct": found.allow_direct,
    }
    different = {name: there[name] for name in wanted if wanted[name] != there[name]}
    if different:
        get_logger().warning("stream has another configuration", stream=spec.name, **different)


def direct_subject(stream: str, subject: str) -> str:
    """Return where to ask for the newest message of a subject in a stream."""
    return f"$JS.API.DIRECT.GET.{stream}.{subject}"


def sequence_of(msg: Delivery) -> int:
    """Return the sequence number of a message that a direct read returned."""
    return int(msg.headers["Nats-Sequence"])


def is_wrong_revision(fault: ApiFault) -> bool:
    """Return whether a compare-and-set lost."""
    return fault.err_code in _WRONG_REVISION


async def ask_page(link: Link, subject: str, data: bytes, timeout_s: float) -> list[Delivery]:
    """Send a request that is answered by many messages and an end mark; return the messages.

    Raises:
        NoResponders, RequestTimeout, BusDown.
    """
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    page: list[Delivery] = []

    def receive(msg: Delivery) -> None:
        status = msg.headers.get(_STATUS)
        if status is None:
            page.append(msg)
        elif not ended.done():
            ended.set_result(status)

    inbox = link.client.new_inbox()
    try:
        async with asyncio.timeout(timeout_s):
            subscription = await link.listen(inbox, receive)
            try:
                await link.publish(subject, data, reply=inbox)
                status = await ended
            finally:
                await link.client.stop_subscription(subscription, 0.0)
    except TimeoutError as error:
        raise RequestTimeout(subject) from error
    if status == _NO_RESPONDERS:
        raise NoResponders(subject)
    if status not in {_END_OF_PAGE, _NO_MESSAGES}:
        raise BusError(f"the server answered with status {status}")
    return page


async def read_stream(
    link: Link, stream: str, subject: str, *, timeout_s: float, first: int = 1
) -> AsyncIterator[Delivery]:
    """Go through the messages of a stream that match a subject filter, oldest first.

    Messages that are stored meanwhile may be included. `timeout_s` is for all of it, `first` the
    sequence number to begin at.

    Raises:
        NoResponders: there is no such stream now. RequestTimeout, BusDown.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    sequence = first
    while True:
        left = deadline - loop.time()
        if left <= 0:
            raise RequestTimeout(f"reading {stream} took too long")
        body: dict[str, Any] = {"seq": sequence, "batch": _PAGE, "next_by_subj": subject}
        # A page whose answer was lost with the connection never comes.
        patience_s = min(left, _PAGE_TIMEOUT_S)
        asked = json.dumps(body).encode()
        page = await ask_page(link, f"$JS.API.DIRECT.GET.{stream}", asked, patience_s)
        for msg in page:
            yield msg
        # A page ends early at the end of the stream, or at the server's limit of bytes.
        if not page or not _pending(page[-1]):
            return
        sequence = sequence_of(page[-1]) + 1


def _pending(msg: Delivery) -> bool:
    pending = msg.headers.get("Nats-Num-Pending", "0")
    if not pending.isdigit():
        raise BusError("the server's page has no count")
    return int(pending) > 0
