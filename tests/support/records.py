"""Records of requests and cards of engines, for tests that need one of any kind."""

from __future__ import annotations

from typing import Any

from proto.ids import Incarnation, InstanceId, RequestId, TenantHash
from proto.ledger import RequestRecord, RequestState, Sink
from proto.workers import CompatCard

__all__ = ["RID", "card_of", "record_of"]

RID = RequestId("a" * 26)


def record_of(state: RequestState, attempt: int = 0, **fields: Any) -> RequestRecord:
    """Return the record of a request that one gateway owns; `fields` take the place of others."""
    plain = {
        "rid": RID,
        "tenant": TenantHash("t"),
        "model": "m",
        "sink": Sink(gateway=InstanceId("gateway-00000000"), incarnation=Incarnation("9" * 16)),
        "digest": "d",
        "deadline_ms": 0,
        "created_ms": 0,
    }
    return RequestRecord(state=state, attempt=attempt, **{**plain, **fields})


def card_of(**fields: Any) -> CompatCard:
    """Return the card of a small engine; `fields` take the place of others."""
    plain = {
        "model": "m",
        "revision": "r",
        "tokenizer": "t",
        "dtype": "f",
        "kv_dtype": "f",
        "kv_layout": "n",
        "page_size": 16,
        "layers": 2,
        "kv_heads": 2,
        "head_dim": 16,
    }
    return CompatCard(**{**plain, **fields})
