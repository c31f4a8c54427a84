"""Every subject, queue group, stream and bucket, each built in one place.

Ids stand in the last tokens only, so that `pdbus.v1.prefill.*.*.start` (all) and
`pdbus.v1.prefill.<instance>.<incarnation>.>` (mine) both work as subscriptions and permissions.
"""

from __future__ import annotations

from functools import lru_cache

from proto.events import EventKind
from proto.ids import Incarnation, InstanceId, Nonce, RequestId, TenantHash
from proto.workers import Role, WorkerRef

__all__ = [
    "ALL_CANCELS",
    "ALL_EVENTS",
    "ALL_HEARTBEATS",
    "ALL_LEASE_ENDS",
    "BUCKET_REQUESTS",
    "BUCKET_RESULTS",
    "DECODE_HEARTBEATS",
    "GATEWAY_HEARTBEATS",
    "GROUP_ROUTER",
    "PREFILL_HEARTBEATS",
    "PREFIX",
    "ROUTER_CLAIM",
    "ROUTER_PLACE",
    "STREAM_EVENTS",
    "cancel",
    "event",
    "events_of",
    "gateway",
    "heartbeat",
    "template",
    "token_batches",
    "tokens",
    "tokens_of_gateway",
    "worker",
]

PREFIX = "pdbus.v1"

ROUTER_PLACE = f"{PREFIX}.router.place"
ROUTER_CLAIM = f"{PREFIX}.router.claim"
GROUP_ROUTER = "router"

ALL_HEARTBEATS = f"{PREFIX}.heartbeat.>"
GATEWAY_HEARTBEATS = f"{PREFIX}.heartbeat.gateway.>"
DECODE_HEARTBEATS = f"{PREFIX}.heartbeat.decode.>"
PREFILL_HEARTBEATS = f"{PREFIX}.heartbeat.prefill.>"
ALL_CANCELS = f"{PREFIX}.cancel.>"
ALL_EVENTS = f"{PREFIX}.events.>"
ALL_LEASE_ENDS = f"{PREFIX}.events.{EventKind.LEASE_ENDED}.>"

STREAM_EVENTS = "PDBUS_EVENTS"
BUCKET_REQUESTS = "PDBUS_REQUESTS"
BUCKET_RESULTS = "PDBUS_RESULTS"


def worker(ref: WorkerRef, verb: str) -> str:
    """Return the subject of one verb of one worker incarnation."""
    kind = Role.PREFILL if ref.role is Role.PREFILL else Role.DECODE
    return f"{PREFIX}.{kind}.{ref.instance}.{ref.incarnation}.{verb}"


def gateway(instance: InstanceId, incarnation: Incarnation, verb: str) -> str:
    """Return the subject of one verb of one gateway process."""
    return f"{PREFIX}.gateway.{instance}.{incarnation}.{verb}"


def tokens(gateway: InstanceId, incarnation: Incarnation, nonce: Nonce) -> str:
    """Return the token subject of one attempt."""
    return f"{PREFIX}.tokens.{gateway}.{incarnation}.{nonce}"


def token_batches(gateway: InstanceId, incarnation: Incarnation) -> str:
    """Return where a gateway receives what belongs to several attempts; a nonce is never so."""
    return f"{PREFIX}.tokens.{gateway}.{incarnation}.batch"


def tokens_of_gateway(gateway: InstanceId, incarnation: Incarnation) -> str:
    """Return the one subscription of a gateway for all its attempts."""
    return f"{PREFIX}.tokens.{gateway}.{incarnation}.*"


def cancel(tenant: TenantHash, rid: RequestId) -> str:
    """Return the subject on which the end of a request is told to all workers."""
    return f"{PREFIX}.cancel.{tenant}.{rid}"


def heartbeat(role: Role, instance: InstanceId, incarnation: Incarnation) -> str:
    """Return the subject of one process' heartbeats."""
    return f"{PREFIX}.heartbeat.{role}.{instance}.{incarnation}"


def event(kind: EventKind, rid: RequestId | None) -> str:
    """Return the subject of an event, or of a bundle that ends with it.

    Events without a request end in `none`.
    """
    return f"{PREFIX}.events.{kind}.{rid or 'none'}"


def events_of(rid: RequestId) -> str:
    """Return the filter for all events of one request."""
    return f"{PREFIX}.events.*.*.{rid}"


_TEMPLATES = {
    "tokens": f"{PREFIX}.tokens.{{gateway}}",
    "cancel": f"{PREFIX}.cancel.{{request}}",
    "heartbeat": f"{PREFIX}.heartbeat.{{instance}}",
    "events": f"{PREFIX}.events.{{kind}}",
}


@lru_cache(maxsize=1024)
def template(subject: str) -> str:
    """Return a subject without its ids: the name for spans and metric labels."""
    if not subject.startswith(f"{PREFIX}."):
        return "other"
    parts = subject.split(".")
    noun = parts[2]
    if noun in {Role.PREFILL, Role.DECODE, Role.GATEWAY}:
        return f"{PREFIX}.{noun}.{{instance}}.{parts[-1]}"
    return _TEMPLATES.get(noun, subject if noun == Role.ROUTER else "other")
