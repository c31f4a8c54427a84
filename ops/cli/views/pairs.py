"""The matrix of ways: from each decode worker to each prefill worker, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
from rich.table import Table

from libs.bus import Bus, BusError
from libs.fleet import refusal_of
from libs.fleet.pairs import report_of, warning_of
from ops.cli.views.workers import listen
from proto import subjects
from proto.errors import PdbusError
from proto.pairs import PairReport, Pairs, PairsRequest, PairState, SizeProbe
from proto.workers import Heartbeat, Role

__all__ = ["PairRow", "gather", "pair_table", "rows"]

_ASK_S = 3.0
_PROBE_S = 60.0
"""All ways of one decode worker, one after the other, some of them dead ends."""
_KIB = 1 << 10


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way, as it is shown."""

    decode: str
    prefill: str
    state: PairState = PairState.UNKNOWN
    lane: str = "unknown"
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    sizes: tuple[SizeProbe, ...] = ()
    probed_ms: int = 0
    code: str = ""
    """Why the pair gets no work."""
    detail: str = ""
    warning: str = ""


async def gather(bus: Bus, *, probe: bool) -> list[PairRow]:
    """Return all ways of the fleet; with `probe` each decode worker goes all of its own again."""
    beats = await listen(bus)
    decodes = [beat for beat in beats if beat.role is Role.DECODE]
    answers = await asyncio.gather(*(_ask(bus, beat, probe=probe) for beat in decodes))
    told = {
        beat.incarnation: reports
        for beat, reports in zip(decodes, answers, strict=True)
        if reports is not None
    }
    return rows([_with(beat, told.get(beat.incarnation)) for beat in beats])


def rows(beats: Sequence[Heartbeat]) -> list[PairRow]:
    """Return a row a pair of the workers that serve one model."""
    prefills = [beat for beat in beats if beat.role is Role.PREFILL]
    decodes = [beat for beat in beats if beat.role is Role.DECODE]
    return [_row(p, d) for d in decodes for p in prefills if _same_model(p, d)]


def pair_table(found: Iterable[PairRow]) -> Table:
    """Return the matrix as a table, one way a line."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("decode", "prefill", "state", "lane"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("latency", "speed", "by size of message"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("")
    for row in found:
        why = f"{row.code}: {row.detail}" if row.code else row.warning
        speeds = ", ".join(f"{_size(one.size_bytes)} {_time(one.seconds)}" for one in row.sizes)
        carriers = sorted({str(one.lane) for one in row.sizes} - {row.lane})
        if carriers:
            # On cma pages are read out of memory; it is the messages beside them that are measured.
            speeds = f"{speeds} (on {', '.join(carriers)})"
        measured = row.state is PairState.UP
        shown.add_row(
            row.decode,
            row.prefill,
            "refused" if row.code else str(row.state),
            row.lane,
            _time(row.latency_s) if measured else "",
            f"{row.bytes_per_s / 1e9:.2f} GB/s" if measured else "",
            speeds,
            why,
        )
    return shown


async def _ask(bus: Bus, beat: Heartbeat, *, probe: bool) -> tuple[PairReport, ...] | None:
    subject = subjects.worker(beat.ref, "pairs")
    try:
        answer = await bus.request(
            subject, PairsRequest(probe=probe), Pairs, timeout_s=_PROBE_S if probe else _ASK_S
        )
    except (BusError, PdbusError):
        # It is about to end, or its engine starts: its last heartbeat stands.
        return None
    return answer.reports


def _with(beat: Heartbeat, reports: tuple[PairReport, ...] | None) -> Heartbeat:
    return beat if reports is None else msgspec.structs.replace(beat, pairs=reports)


def _same_model(prefill: Heartbeat, decode: Heartbeat) -> bool:
    if prefill.card is None or decode.card is None:
        return False
    return prefill.card.differences(decode.card) == ("model",) or (
        prefill.card.model == decode.card.model
    )


def _row(prefill: Heartbeat, decode: Heartbeat) -> PairRow:
    report = report_of(prefill, decode) or PairReport(
        peer=prefill.incarnation, instance=prefill.instance
    )
    refusal = refusal_of(prefill, decode)
    return PairRow(
        decode=decode.instance,
        prefill=prefill.instance,
        state=report.state,
        lane=str(report.lane),
        latency_s=report.latency_s,
        bytes_per_s=report.bytes_per_s,
        sizes=report.sizes,
        probed_ms=report.probed_ms,
        code=str(refusal.code) if refusal else "",
        detail=refusal.detail if refusal else "",
        warning=warning_of(prefill, decode),
    )


def _size(count: int) -> str:
    return f"{count // _KIB} KiB" if count < _KIB * _KIB else f"{count // _KIB // _KIB} MiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004
