"""Settings of a decode worker."""

from __future__ import annotations

from libs.config import SettingsError
from libs.engine.parse import check_names
from libs.worker.settings import WorkerSettings
from proto.ledger import Mode

__all__ = ["Settings"]


class Settings(WorkerSettings, frozen=True, kw_only=True):
    """What decode needs beyond what all workers need."""

    mode: Mode = Mode.DISAGGREGATED
    """`aggregated` computes prompts itself and needs no prefill worker."""
    kv_probe: bool = True
    """Whether the way to each prefill engine is measured when it appears; without it the lane of
    a pair is unknown, which breaches `kv_lanes=require:…`."""
    prefix_cache: bool = False
    """Whether SGLang keeps the KV of ended requests, so that of a prompt that begins as one of them
    only the rest is moved. SGLang calls it experimental. The scripted engine keeps nothing."""
    tool_parser: str = ""
    """Format in which the model writes tool calls, by SGLang's name (as `qwen25` or `hermes`);
    without one, only calls that a request forces are told apart from text."""
    reasoning_parser: str = ""
    """Format in which the model writes its reasoning, by SGLang's name (as `qwen3`); without one
    it stays in the text."""

    def __post_init__(self) -> None:
        """Check the names of the parsers.

        Raises:
            SettingsError: SGLang has no such parser; the text lists those it has.
        """
        try:
            check_names(self.tool_parser, self.reasoning_parser)
        except ValueError as error:
            raise SettingsError(str(error)) from error
