"""KV on its way: offers and pushes in prefill, fetches in decode."""

from __future__ import annotations

from libs.engine.script.jobs import Jobs
from libs.engine.script.live import LiveJob, Stage
from libs.transfer.api import DataPlane, Fetch, Offer, RoomState
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobKind
from proto.ids import JobId

__all__ = ["Transfers"]


class Transfers:
    """The jobs whose rooms are open. All calls come from the engine's loop."""

    def __init__(self, plane: DataPlane, jobs: Jobs) -> None:
        self._plane = plane
        self._jobs = jobs
        self._open: dict[JobId, tuple[LiveJob, Offer | Fetch]] = {}

    def offer(self, live: LiveJob) -> None:
        """Announce the room of a prefill job."""
        live.offer = offer = self._plane.offer(live.job.room)
        self._open[live.job.job] = live, offer

    def wanted(self, live: LiveJob) -> bool:
        """Return whether decode has asked for a prefill job's room."""
        return live.offer is not None and live.offer.state >= RoomState.READY

    def fetch(self, live: LiveJob) -> None:
        """Ask for the KV of an admitted decode job."""
        source = live.job.source
        if source is None:
            self._jobs.fail(live, ErrorCode.ENGINE_ERROR, "decode job without a source")
            return
        pages = -(-live.length // self._jobs.memory.page_size)
        live.fetch = fetch = self._plane.fetch(
            source, live.job.room, live.pages[:pages], row=live.row, tokens=live.length
        )
        self._open[live.job.job] = live, fetch

    def has_pages(self, live: LiveJob) -> bool:
        """Return whether there are complete pages that the data plane has not been given."""
        return self._complete(live) > live.pushed

    def push(self, live: LiveJob, row: tuple[int, ...], now: float) -> None:
        """Give the data plane the pages that are complete; `row` goes with the last of them."""
        complete = self._complete(live)
        if live.offer is None or complete <= live.pushed or now < live.transfer_after:
            return
        last = complete == live.length
        if last:
            self._jobs.memory.set_row(live.row, row)
        size = self._jobs.memory.page_size
        first = live.pushed // size
        live.offer.push(
            live.pages[first : -(-complete // size)],
            first_page=first,
            last=last,
            row=live.row if last else None,
        )
        live.pushed = complete
        live.transfer_after = now + live.transfer_gap_s
        if last:
            live.stage = Stage.SENDING

    def poll(self, now: float) -> list[LiveJob]:
        """End the jobs whose room failed or was sent; return those whose KV has arrived."""
        arrived: list[LiveJob] = []
        for job, (live, handle) in list(self._open.items()):
            state = handle.state
            if live.over:
                del self._open[job]
            elif state is RoomState.FAILED:
                del self._open[job]
                failure = handle.failure
                code = failure.code if failure else ErrorCode.KV_TRANSFER_FAILED
                self._jobs.fail(live, code, failure.detail if failure else "")
            elif state is RoomState.DONE:
                del self._open[job]
                if live.job.kind is JobKind.PREFILL:
                    self._jobs.finish(live, FinishReason.LENGTH, now)
                else:
                    live.kv_usable = now
                    arrived.append(live)
        return arrived

    def sending(self) -> list[LiveJob]:
        """Return the prefill jobs that may have pages to push."""
        return [live for live, _ in self._open.values() if live.stage is Stage.COMPUTING]

    def _complete(self, live: LiveJob) -> int:
        """Prompt tokens in pages that will not change any more."""
        if live.computed == live.length:
            return live.length
        size = self._jobs.memory.page_size
        return live.computed // size * size
