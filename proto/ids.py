"""Identities, and the only place that makes them.

Every identity is lower-case `[a-z0-9-]`, so that it can stand in a NATS subject or a KV key.
Request ids have a fixed length because SGLang aborts by prefix.
"""

from __future__ import annotations

import hashlib
from typing import NewType, Protocol

__all__ = [
    "NOBODY",
    "ROOM_BITS",
    "Entropy",
    "Incarnation",
    "InstanceId",
    "JobId",
    "LeaseId",
    "Nonce",
    "RequestId",
    "Room",
    "TenantHash",
    "job_id",
    "keyed_request_id",
    "lease_id",
    "new_incarnation",
    "new_instance",
    "new_nonce",
    "new_request_id",
    "new_room",
    "tenant_hash",
]

RequestId = NewType("RequestId", str)
"""26 characters: 48 bits of milliseconds and 80 random bits, base 32, sortable by time."""

InstanceId = NewType("InstanceId", str)
"""`<service>-<8 base32>`, fixed for the life of a service process."""

Incarnation = NewType("Incarnation", str)
"""16 hex digits, new with each start of an engine (workers) or of a process (other services)."""

Nonce = NewType("Nonce", str)
"""32 hex digits, new with each attempt; the unguessable end of a token subject."""

Room = NewType("Room", int)
"""A random positive 63-bit number that names one KV transfer; never reused."""

LeaseId = NewType("LeaseId", str)
"""`<incarnation>.<request>.<attempt>.<side>`: one duty to free KV memory."""

JobId = NewType("JobId", str)
"""28 characters: request id and two digits of attempt; the id that an engine knows."""

TenantHash = NewType("TenantHash", str)
"""16 hex digits that stand for a tenant in subjects and keys."""

NOBODY = Incarnation("0" * 16)
"""The incarnation of a worker whose engine has never started."""

ROOM_BITS = 63
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class Entropy(Protocol):
    """A source of random bits: `secrets.SystemRandom` in production, a seeded one in simulation."""

    def getrandbits(self, k: int, /) -> int:
        """Return `k` random bits as an integer."""
        ...


_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
"""All numbers of ten bits; two digits at a time take half as long."""


def _base32(value: int, length: int) -> str:
    """Return the last digits of a number; an even number of them."""
    return "".join([_PAIRS[(value >> bits) & 1023] for bits in range(5 * length - 10, -1, -10)])


def new_request_id(unix_ms: int, entropy: Entropy) -> RequestId:
    """Return a new request id for a request that arrived at `unix_ms`."""
    return RequestId(_base32((unix_ms << 80) | entropy.getrandbits(80), 26))


def new_instance(service: str, entropy: Entropy) -> InstanceId:
    """Return a new instance id for a process of `service`."""
    return InstanceId(f"{service}-{_base32(entropy.getrandbits(40), 8)}")


def new_incarnation(entropy: Entropy) -> Incarnation:
    """Return a new incarnation."""
    return Incarnation(f"{entropy.getrandbits(64):016x}")


def keyed_request_id(tenant: TenantHash, key: str, generation: int) -> RequestId:
    """Return the request id that a tenant's idempotency key stands for.

    Args:
        generation: 0 for the first use of the key, 1 after its failure was forgotten, and so on.
    """
    digest = hashlib.sha256(f"{tenant}\n{generation}\n{key}".encode()).digest()
    return RequestId(_base32(int.from_bytes(digest[:17]), 26))


def new_nonce(entropy: Entropy) -> Nonce:
    """Return a new nonce."""
    return Nonce(f"{entropy.getrandbits(128):032x}")


def new_room(entropy: Entropy) -> Room:
    """Return a new room; never zero, which engines read as "none"."""
    return Room(entropy.getrandbits(ROOM_BITS) or 1)


def lease_id(incarnation: Incarnation, rid: RequestId, attempt: int, side: str) -> LeaseId:
    """Return the name of the lease that one incarnation holds for one side of an attempt."""
    return LeaseId(f"{incarnation}.{rid}.{attempt}.{side}")


def job_id(rid: RequestId, attempt: int) -> JobId:
    """Return the fixed-length id under which engines know an attempt (at most 100 attempts)."""
    return JobId(f"{rid}{attempt:02d}")


def tenant_hash(tenant: str) -> TenantHash:
    """Return the short name of a tenant that is safe in a subject."""
    return TenantHash(hashlib.sha256(tenant.encode()).hexdigest()[:16])
