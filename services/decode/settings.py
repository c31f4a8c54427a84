"""Settings of a decode worker."""

from __future__ import annotations

from libs.worker.settings import WorkerSettings
from proto.ledger import Mode

__all__ = ["Settings"]


class Settings(WorkerSettings, frozen=True, kw_only=True):
    """What decode needs beyond what all workers need."""

    mode: Mode = Mode.DISAGGREGATED
    """`aggregated` computes prompts itself and needs no prefill worker."""
