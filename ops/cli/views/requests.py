"""Requests as the ledger knows them. Pure: no input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table

from proto.ledger import Placement, RequestRecord

__all__ = ["age", "request_table"]

_MINUTE_S = 60
_HOUR_S = 3600


def request_table(records: Iterable[RequestRecord], now_ms: int) -> Table:
    """Return requests as a table; ages count to `now_ms` (Unix ms)."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("request", no_wrap=True)
    for heading in ("age", "state", "attempt", "mode", "prefill", "decode", "tokens"):
        right = heading in {"age", "attempt", "tokens"}
        shown.add_column(heading, justify="right" if right else "left", no_wrap=True)
    shown.add_column("freed", no_wrap=True)
    shown.add_column("error")
    for record in records:
        shown.add_row(*_row(record, now_ms))
    return shown


def age(milliseconds: int) -> str:
    """Return a time span in its coarsest useful unit."""
    seconds = max(0, milliseconds) / 1000
    if seconds < _MINUTE_S:
        return f"{seconds:.1f}s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f}m{seconds % _MINUTE_S:02.0f}s"
    return f"{seconds // _HOUR_S:.0f}h{seconds % _HOUR_S // _MINUTE_S:02.0f}m"


def _row(record: RequestRecord, now_ms: int) -> Iterator[str]:
    yield record.rid
    yield age(now_ms - record.created_ms)
    yield record.state
    yield str(record.attempt) if record.attempt >= 0 else ""
    yield from _where(record.placement)
    yield _tokens(record)
    yield _freed(record)
    yield str(record.error or "") + (f": {record.detail}" if record.detail else "")


def _where(placement: Placement | None) -> tuple[str, str, str]:
    if placement is None:
        return "", "", ""
    prefill = placement.prefill.instance if placement.prefill else ""
    return placement.mode, prefill, placement.decode.instance


def _tokens(record: RequestRecord) -> str:
    """Prompt and answer."""
    usage = record.usage
    return f"{usage.prompt_tokens}+{usage.completion_tokens}" if usage else ""


def _freed(record: RequestRecord) -> str:
    """Return which sides are proved free; of a running request nothing is yet."""
    if not record.ended:
        return ""
    sides = (("src", record.cleaned.src), ("dst", record.cleaned.dst))
    return " ".join(name for name, free in sides if free) or "none"
