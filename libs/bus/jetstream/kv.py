"""A ledger of typed records in a JetStream KV bucket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import msgspec

from libs.bus.api import (
    BusDown,
    BusError,
    Conflict,
    NoResponders,
    RequestTimeout,
    StoreUnknown,
    Versioned,
)
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.bus.jetstream.streams import (
    Ack,
    StreamSpec,
    direct_subject,
    ensure_stream,
    is_wrong_revision,
    read_stream,
    sequence_of,
)
from libs.clock import Clock
from libs.telemetry import count, get_logger, names
from proto.base import Message, encode
from proto.headers import EXPECTED_SEQUENCE

__all__ = ["BucketSpec", "NatsStore"]

RecordT = TypeVar("RecordT", bound=Message)

_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"
_STATUS = "Status"
_ABSENT = "404"
_RETRY_AFTER_S = 0.25
_EXPECTED = EXPECTED_SEQUENCE.encode()
"""A stream whose leader changes answers nothing for a moment."""


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket. Records vanish `ttl_s` seconds after their last write."""

    name: str
    ttl_s: float = 3600.0
    max_bytes: int = -1
    replicas: int = 1
    in_memory: bool = False
    """Keep records off the disk; they are lost when the server ends."""

    def to_stream(self) -> StreamSpec:
        """Return the stream that holds the bucket, as ADR-8 wants it."""
        return StreamSpec(
            name=f"KV_{self.name}",
            subjects=(f"$KV.{self.name}.>",),
            description="pdbus records",
            max_age_s=self.ttl_s,
            max_bytes=self.max_bytes,
            per_subject=1,
            discard_new=True,
            replicas=self.replicas,
            record=True,
            in_memory=self.in_memory,
        )


class NatsStore(Generic[RecordT]):
    """Records of one type, changed by compare-and-set only.

    The bucket is made when it is first needed, and again should the server have lost it.

    Args:
        link: the connection.
        bucket: where the records are.
        kind: what they are.
        clock: for waiting.
        timeout_s: how long one operation may take.
        ensure_timeout_s: how long to wait for JetStream when the bucket is not known yet.
    """

    def __init__(
        self,
        link: Link,
        bucket: BucketSpec,
        kind: type[RecordT],
        clock: Clock,
        *,
        timeout_s: float = 1.0,
        ensure_timeout_s: float = 5.0,
    ) -> None:
        self._link = link
        self._spec = bucket.to_stream()
        self._prefix = f"$KV.{bucket.name}."
        self._clock = clock
        self._timeout_s = timeout_s
        self._ensure_timeout_s = ensure_timeout_s
        self._ensured = False
        self._decode = msgspec.msgpack.Decoder(kind).decode

    async def ensure_bucket(self, timeout_s: float | None = None) -> None:
        """Make sure that the bucket exists; safe from several processes at once.

        Raises:
            BusDown: it could not be made in time.
        """
        limit = timeout_s if timeout_s is not None else self._ensure_timeout_s
        await ensure_stream(self._link, self._spec, self._clock, timeout_s=limit)
        self._ensured = True

    async def get(self, key: str) -> Versioned[RecordT] | None:
        """Return the newest record that this reader can see, or None.

        Raises:
            BusDown, RequestTimeout, BusError: the record cannot be read.
        """
        msg = await self._newest(key)
        if msg is None or _is_marker(msg):
            return None
        return self._read(msg)

    async def create(self, key: str, value: RecordT) -> int:
        """Write a record whose key must be absent; return its revision.

        Raises:
            Conflict: the key exists. StoreUnknown, BusDown, TooLarge.
        """
        data = encode(value)
        try:
            return await self._put(key, data, 0)
        except Conflict:
            # A marker of a deleted or expired record counts as a revision too.
            revision = await self._absent_revision(key)
            if revision is None:
                raise
            return await self._put(key, data, revision)

    async def update(self, key: str, value: RecordT, revision: int) -> int:
        """Replace the record that has `revision`; return the new revision.

        Raises:
            Conflict: it has another revision. StoreUnknown, BusDown, TooLarge.
        """
        return await self._put(key, encode(value), revision)

    async def scan(
        self, since: int = 0, *, timeout_s: float = 30.0
    ) -> AsyncIterator[tuple[str, Versioned[RecordT]]]:
        """Go through all live records, or those changed after a revision, at most `timeout_s` long.

        A record that changes meanwhile may come twice, the newer version later; none is missed.

        Raises:
            BusDown, RequestTimeout.
        """
        await self._prepare()
        try:
            async for msg in read_stream(
                self._link,
                self._spec.name,
                f"{self._prefix}>",
                first=since + 1,
                timeout_s=timeout_s,
            ):
                if _is_marker(msg):
                    continue
                key = msg.headers["Nats-Subject"].removeprefix(self._prefix)
                try:
                    yield key, self._read(msg)
                except BusError:
                    get_logger().error("record cannot be read", bucket=self._spec.name, key=key)
        except NoResponders as error:
            raise self._gone() from error

    async def _prepare(self) -> None:
        if not self._ensured:
            await self.ensure_bucket()

    def _gone(self) -> BusDown:
        self._ensured = False
        return BusDown(f"bucket {self._spec.name} does not answer")

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key")
        return f"{self._prefix}{key}"

    async def _newest(self, key: str) -> Delivery | None:
        subject = direct_subject(self._spec.name, self._subject(key))
        await self._prepare()
        msg = await self._ask(subject, b"", None)
        status = msg.headers.get(_STATUS)
        if status is None:
            return msg
        if status == _ABSENT:
            return None
        raise BusDown(f"bucket {self._spec.name} answers with status {status}")

    async def _absent_revision(self, key: str) -> int | None:
        """Return the revision to name when an absent key is written; None if it is not absent."""
        try:
            msg = await self._newest(key)
        except RequestTimeout as error:
            raise StoreUnknown("a conflict could not be examined") from error
        if msg is None:
            return 0
        return sequence_of(msg) if _is_marker(msg) else None

    async def _put(self, key: str, data: bytes, revision: int) -> int:
        subject = self._subject(key)
        await self._prepare()
        try:
            msg = await self._ask(subject, data, _expecting(revision))
        except RequestTimeout as error:
            raise StoreUnknown("the write was not acknowledged") from error
        ack = _decode_ack(msg.data)
        if ack.error is None:
            return ack.seq
        if is_wrong_revision(ack.error):
            raise Conflict(ack.error.description)
        get_logger().error(
            "bucket refuses a write",
            bucket=self._spec.name,
            error=ack.error.description,
            error_code=ack.error.err_code,
        )
        raise BusDown(ack.error.description)

    async def _ask(self, subject: str, data: bytes, head: bytes | None) -> Delivery:
        """Ask, and ask again while it is certain that nobody has received it."""
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            left = deadline - self._clock.monotonic()
            try:
                return await self._link.ask(subject, data, head, left)
            except NoResponders as error:
                if deadline - self._clock.monotonic() <= _RETRY_AFTER_S:
                    raise self._gone() from error
                await self._clock.sleep(_RETRY_AFTER_S)

    def _read(self, msg: Delivery) -> Versioned[RecordT]:
        try:
            value = self._decode(msg.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            count(names.BUS_DECODE_ERRORS, template=self._spec.name)
            raise BusError(f"a record in {self._spec.name} cannot be read") from error
        return Versioned(value, sequence_of(msg))


def _expecting(revision: int) -> bytes:
    """Return the head of a write that holds only if the record has this revision."""
    return b"NATS/1.0\r\n%b: %d\r\n\r\n" % (_EXPECTED, revision)


_decode_ack = msgspec.json.Decoder(Ack).decode


def _is_marker(msg: Delivery) -> bool:
    headers = msg.headers
    return not msg.data or _OPERATION in headers or _MARKER in headers
