"""Settings of a prefill worker."""

from __future__ import annotations

from libs.worker.settings import WorkerSettings

__all__ = ["Settings"]


class Settings(WorkerSettings, frozen=True, kw_only=True):
    """Prefill needs what all workers need."""
